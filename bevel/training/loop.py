"""The loop of a run: select, step, and, at checkpoints, account and release."""

import collections
import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import bevel.training.data as data
from bevel.errors import StopRunError
from bevel.training.agreement import agreed, any_of, is_first
from bevel.training.batches import Batches
from bevel.training.digest import digest
from bevel.training.interrupts import RunInterrupted, Wish, interrupts
from bevel.training.prefetch import Prefetched
from bevel.training.programs import Programs
from bevel.training.progress import Progress
from bevel.training.record import described
from bevel.training.resume import surroundings
from bevel.training.run import Metrics, RunOptions, now
from bevel.training.state import TrainingState, joined, split

if TYPE_CHECKING:
    from bevel.training.trainer import Trainer

PyTree = Any
Callback = Callable[[TrainingState, Mapping[str, Any]], Any]
Evaluate = Callable[[PyTree], Mapping[str, Any]]
# Steps that may be under way on the device before the host waits for the first of them.
UNDER_WAY = 2


@dataclasses.dataclass
class Loop:
    """One call of `fit`."""

    trainer: "Trainer"
    run: Any  # FolderRun or MemoryRun
    batches: Batches
    options: RunOptions
    evaluate: Evaluate | None
    callback: Callback | None

    def go(self, begin: TrainingState, precompile: bool) -> TrainingState:
        """Goes on from the last checkpoint, or from `begin`, to the end of the plan."""
        run, plan = self.run, self.trainer.plan
        words = self.words()
        programs = Programs(self.trainer._measured_step, begin, words, self.batches)
        show = self.options.progress is not False and is_first()
        notes = Progress(plan.iterations, show=show)
        exactly = self.exactly(programs) if run.keeps else {}
        _, frozen = split(begin.params, self.trainer.trainable)
        kept = run.resume(saved_part(begin, frozen), digest(frozen), exactly)
        state = with_saved(kept, frozen)
        step = int(state.step)
        words = self.words()  # of the attempt that goes on
        self.batches = dataclasses.replace(self.batches, seed=self.sampling_seed())
        if precompile and step < plan.iterations:
            programs.compile_ahead(self.batches.sizes.sizes)
        if run.keeps:
            run.write_record(**described(self.trainer, self.batches, state, programs, exactly, run))
        notes.note(
            f"{programs.compiled} programs compiled ahead in {programs.seconds:.1f} s, for batches "
            f"padded to {', '.join(map(str, self.batches.sizes.sizes))}; step {step} of "
            f"{plan.iterations}" + (f", attempt {run.attempt}" if run.attempt else "")
        )
        budget, begun = run.budget and run.budget.epsilon, time.perf_counter()
        with (
            Progress(plan.iterations, step, show=show, budget=budget) as progress,
            Prefetched(lambda: self.batches.since(step), self.options.ahead) as selected,
            interrupts() as wish,
        ):
            state, status = self.steps(state, step, programs, words, selected, progress, wish)
            run.finish_release()
        run.write_record(
            finished=now(),
            status=status,
            steps_taken=int(state.step),
            programs_compiled=programs.compiled,
            seconds=round(time.perf_counter() - begun, 3),
            seconds_waiting_for_data=round(selected.waited, 3),
        )
        if wish.number is not None and status == "interrupted":
            raise RunInterrupted(
                f"stopped by signal {wish.number} after {int(state.step)} of {plan.iterations} "
                "steps; the state is saved: start again to go on",
                wish.number,
            )
        return state

    def steps(
        self,
        state: TrainingState,
        step: int,
        programs: Programs,
        words: PyTree,
        selected: Prefetched[Any],
        progress: Progress,
        wish: Wish,
    ) -> tuple[TrainingState, str]:
        """Takes the steps that are left. Returns the last state, and why it is the last."""
        run, end = self.run, self.trainer.plan.iterations
        every = self.options.checkpoint_every
        seen = Seen()
        if run.needs_metrics(step):
            self.release(state, step, step, seen, progress, 0.0)
        while step < end:
            goal = run.affordable(step, min((step // every + 1) * every, end))
            if goal == 0:
                raise StopRunError(
                    f"the budget ({run.budget}) does not allow a single step: other runs of the "
                    "ledger have spent it, or the noise is too small for it. Nothing was charged."
                )
            if goal == step:
                return state, "ended by the budget"
            begun, since = step, time.perf_counter()
            trouble: Exception | None = None
            while step < goal and not (wish and jax.process_count() == 1):
                try:
                    batch = next(selected)  # select
                except Exception as error:  # of reading: the steps before it are saved first
                    trouble = error
                    break
                state, measured = programs(state, batch, words)  # clip, noise, update
                step += 1
                seen.add(step - 1, run.attempt, measured)
                progress.advance(step)
                run.finish_release(if_ready=True)
            stop = False
            if step > begun:  # account
                stop = self.release(state, step, begun, seen, progress, since)
            if trouble is not None:
                run.finish_release()
                raise trouble
            if stop:
                return state, "ended by the callback"
            if any_of(bool(wish)):
                return state, "interrupted"
        return state, "complete"

    def release(
        self,
        state: TrainingState,
        step: int,
        begun: int,
        seen: "Seen",
        progress: Progress,
        since: float,
    ) -> bool:
        """Charges, saves, and shows what may then be shown. True if the callback wants to stop."""
        rows = seen.taken()
        _, frozen = split(state.params, self.trainer.trainable)
        size, seconds = self.trainer.plan.expected_batch_size, time.perf_counter() - since
        speed = (step - begun) * size / seconds if size and step > begun else None

        def metrics() -> Mapping[str, Any]:
            # Of the expected batch size: the real ones are not for everyone.
            known = {} if speed is None else {"examples_per_second": round(speed, 1)}
            return known | (dict(self.evaluate(shown_params(state))) if self.evaluate else {})

        def show(released: Metrics) -> None:
            progress.released(released, rows[-1] if rows else None)

        saved = saved_part(state, frozen)
        released = self.run.release(step, saved, rows, metrics, show, again=step == begun)
        if self.callback is None:
            return False
        self.run.finish_release()  # what the callback sees must be on disk
        answer = self.callback(state, released)
        wants_end = isinstance(answer, bool | np.bool_) and bool(answer)
        return bool(agreed(float(wants_end))[0])

    def words(self) -> PyTree:
        """The keys of a step, on the mesh, as words."""
        secrets = self.run.secrets
        key = np.asarray(jax.random.key_data(secrets.noise_key))
        words = {"noise": key, "loss": loss_words(self.sampling_seed())}
        mesh = self.batches.layout.mesh
        where = (
            self.batches.layout.sharding if mesh is None else NamedSharding(mesh, PartitionSpec())
        )
        return jax.tree.map(lambda x: jax.device_put(x, where), words)

    def sampling_seed(self) -> int:
        seed = getattr(self.run, "sampling_seed", None)
        return self.run.secrets.sampling_seed if seed is None else seed

    def exactly(self, programs: Programs) -> dict[str, Any]:
        """What must be the same for steps to give the same bits again."""
        salt = self.run.secrets.root
        known = data.fingerprint(self.batches.source, salt)
        sizes = list(self.batches.sizes.sizes)
        return surroundings(self.trainer.mesh) | {
            "program": programs.fingerprint(),
            "data": known,
            "padded_sizes": sizes,
        }


class Seen:
    """The measures of steps, taken off the device a little later, so that nothing waits."""

    def __init__(self) -> None:
        self._under_way: collections.deque[Metrics] = collections.deque()
        self._rows: list[Metrics] = []

    def add(self, step: int, attempt: int, measured: Mapping[str, Any]) -> None:
        self._under_way.append({"step": step, "attempt": attempt, **measured})
        if len(self._under_way) > UNDER_WAY:
            self._rows.append(jax.device_get(self._under_way.popleft()))

    def taken(self) -> list[Metrics]:
        """All rows since the last time; waits for the steps that are under way."""
        rows = self._rows + [jax.device_get(row) for row in self._under_way]
        self._rows = []
        self._under_way.clear()
        return rows


def saved_part(state: TrainingState, frozen: PyTree) -> TrainingState:
    """What changes from step to step: the state without the frozen parameters."""
    return dataclasses.replace(state, params=without(state.params, frozen))


def without(params: PyTree, frozen: PyTree) -> PyTree:
    is_none = lambda x: x is None  # noqa: E731
    return jax.tree.map(lambda f, p: p if f is None else None, frozen, params, is_leaf=is_none)


def with_saved(kept: TrainingState, frozen: PyTree) -> TrainingState:
    return dataclasses.replace(kept, params=joined(kept.params, frozen))


def shown_params(state: TrainingState) -> PyTree:
    """The parameters to evaluate: averaged, where they are."""
    if state.average is None:
        return state.params
    return jax.tree.map(
        lambda average, p: p if average is None else average,
        state.average,
        state.params,
        is_leaf=lambda x: x is None,
    )


def loss_words(sampling_seed: int) -> np.ndarray:
    """A threefry key for losses: who does not have the run's secrets knows nothing of it."""
    seed = sampling_seed.to_bytes(16, "little")
    hashed = hashlib.blake2b(b"loss", key=seed, digest_size=8).digest()
    return np.frombuffer(hashed, np.uint32)
