"""The loop of a run: select a batch, take a step, and account and release at checkpoints."""

import collections
import dataclasses
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bevel.batch_selection import MinSepState
from bevel.errors import StopRunError
from bevel.training import process_agreement
from bevel.training.batches import Batches
from bevel.training.checkpoint import StateHalves
from bevel.training.compiled_steps import CompiledSteps
from bevel.training.folder_run import FolderRun, Metrics
from bevel.training.identity import Change
from bevel.training.interrupts import RunInterrupted, StopRequest, interrupts
from bevel.training.memory_run import MemoryRun
from bevel.training.prefetch import Prefetched
from bevel.training.progress import Progress
from bevel.training.raw_warnings import RawWarnings
from bevel.training.replicas import check_replicas
from bevel.training.resume import ReplayDiffersError, surroundings
from bevel.training.run_description import identity_of, private_record, public_record
from bevel.training.run_json import now
from bevel.training.run_options import RunOptions
from bevel.training.state import ReleasedState, TrainingState, joined, shaped, split
from bevel.training.stopwatch import seconds_by_part

if TYPE_CHECKING:
    from bevel.training.trainer import Trainer

PyTree = Any
Callback = Callable[[ReleasedState, Mapping[str, Any]], Any]
Evaluate = Callable[[PyTree], Mapping[str, Any]]
# The host waits when more steps than this are running on the device.
UNDER_WAY = 2


@dataclasses.dataclass
class Loop:
    """One call of `fit`."""

    trainer: "Trainer"
    run: FolderRun | MemoryRun
    batches: Batches
    options: RunOptions
    evaluate: Evaluate | None
    callback: Callback | None
    progress: Progress
    begin: TrainingState | None  # taken by `train`, so that nothing else keeps it in memory
    raw_warnings: RawWarnings = dataclasses.field(default_factory=RawWarnings)
    _sampler_state: MinSepState | None = None  # after the last step that was taken
    _fixed: tuple[PyTree, PyTree] = (None, None)  # what `fixed` returns for the last state

    def train(self, precompile: bool) -> TrainingState:
        """Runs from the last checkpoint, or from `begin`, to the end of the plan.

        If there is a checkpoint, only the types of `begin`, its digests and what no step changes
        are used. The arrays are freed before the checkpoint is read.
        """
        step, working = self.trainer.step.measured, self.progress.working
        programs = CompiledSteps(step, self.begin, self.key_data(), self.batches, working)
        with closing(programs):
            return self.train_with(programs, precompile)

    def train_with(self, programs: CompiledSteps, precompile: bool) -> TrainingState:
        """Looks for a checkpoint while the step is compiled, and takes the remaining steps."""
        run, plan = self.run, self.trainer.plan
        begin, self.begin = self.begin, None
        assert begin is not None
        working = self.progress.working
        in_background = precompile and jax.process_count() == 1
        environment, digests = {}, {}
        if run.keeps or jax.process_count() > 1:
            with working("tracing the step"):
                environment = surroundings(self.trainer.mesh) | {
                    "program": programs.fingerprint(),
                    "padded_sizes": list(self.batches.sizes.sizes),
                }
                if in_background and isinstance(run, FolderRun) and not run.checkpoints.steps():
                    programs.begin()
                digests = self.trainer.step.digests(begin)
            process_agreement.check_same(digests)
        changes: list[Change] = []
        new: StateHalves | None = self.halves(begin)
        like, self._fixed = jax.tree.map(shaped, new), self.fixed(begin)
        with working("looking for a checkpoint") if run.keeps else nullcontext():
            if isinstance(run, FolderRun):
                found = identity_of(self.trainer, begin, self.batches, run, environment, digests)
                changes = run.identify(found)
                new = None if run.checkpoints.exist() else new
            del begin
            state = self.joined_state(run.resume(like, new, environment, self.rows_between))
            del new
        step = int(state.step)
        if step:
            attempt = f", attempt {run.attempt}" if run.attempt else ""
            self.progress.note(f"resuming after {step} of {plan.iterations} steps{attempt}")
        if changes:
            self.progress.note(f"changed since the run began: {'; '.join(map(str, changes))}")
        if precompile and step < plan.iterations:
            programs.begin() if in_background else programs.compile_all()
        if isinstance(run, FolderRun):
            described = (self.trainer, self.batches, state, programs, environment, run, changes)
            run.write_record(**public_record(*described))
            run.write_private_record(**private_record(run, environment))
            del described
        with suppress(ReplayDiffersError):  # its traceback, which holds a state, is freed
            return self.run_attempt(state, step, programs)
        run.take_fresh_attempt(["running them again gave another result"])
        state = self.joined_state(run.restore_again(like))
        return self.run_attempt(state, int(state.step), programs)

    def run_attempt(
        self, state: TrainingState, step: int, programs: CompiledSteps
    ) -> TrainingState:
        """Takes the remaining steps, with the noise and batches of this attempt."""
        run, plan = self.run, self.trainer.plan
        key_data, batches = self.key_data(), self.batches_of_attempt()
        begun, compiled_before = time.perf_counter(), programs.seconds
        remembered = self.sampler_state_at(step)
        run.stopwatch.seconds.clear()
        self.progress.begin(step, plan.iterations, run.budget or plan.budget)
        try:
            with (
                Prefetched(lambda: batches.since(step, remembered), self.options.ahead) as selected,
                interrupts() as stop,
            ):
                state, status = self.steps(state, step, programs, key_data, selected, stop)
                self.finish_release()
        finally:
            self.progress.end()
        # An interruption shows when somebody stopped the run, so only the private record has it.
        run.write_record(ending=None if status == "interrupted" else status)
        run.write_private_record(
            finished=now(),
            status=status,
            steps_taken=int(state.step),
            programs_compiled=programs.compiled,
            seconds=round(seconds := time.perf_counter() - begun, 3),
            seconds_waiting_for_data=round(selected.waited, 3),
            seconds_by_part=seconds_by_part(
                seconds, compiled_before, programs.seconds, selected.waited, run.stopwatch
            ),
            seconds_of_releases=run.seconds_of_releases(),
        )
        if stop.number is not None and status == "interrupted":
            raise RunInterrupted(stop.number, state, plan.iterations, saved=run.keeps)
        return state

    def steps(
        self,
        state: TrainingState,
        step: int,
        programs: CompiledSteps,
        key_data: PyTree,
        selected: Prefetched[Any],
        stop: StopRequest,
    ) -> tuple[TrainingState, str]:
        """Takes the remaining steps. Returns the last state, and why the run ended there."""
        run, end = self.run, self.trainer.plan.iterations
        every = self.options.checkpoint_every
        seen = PendingMetrics()
        if run.needs_metrics(step):
            self.release(state, step, step, seen, (step, 0.0))
        begun = run.last_release(step)
        while begun < end:
            due = -(-max(begun + 1, step) // every) * every
            goal = run.next_goal(begun, min(due, end))
            if goal == 0:
                raise StopRunError(
                    f"the budget ({run.budget}) does not allow a single step: other runs of the "
                    "ledger have spent it, or the noise is too small for it. Nothing was charged. "
                    "Use another ledger for other data, or a ledger with a larger budget."
                )
            if goal == begun:
                return state, "ended by the budget"
            since = (step, time.perf_counter())
            while step < goal:
                if stop and jax.process_count() == 1:
                    self.keep_unreleased(state, step, begun, seen)
                    return state, "interrupted"
                try:
                    batch = next(selected)  # select
                except Exception:  # the data could not be read: keep the steps before it
                    self.keep_unreleased(state, step, begun, seen)
                    raise
                state, measured = programs(state, batch, key_data)  # clip, noise, update
                step += 1
                self._sampler_state = batch.sampler_state
                seen.add(step - 1, run.attempt, measured, batch.digest)
                self.progress.advance(step)
                if step < end:
                    programs.go_on()
                self.finish_release(if_ready=True)
            if self.release(state, step, begun, seen, since):  # account
                return state, "ended by the callback"
            begun = step
            if step < end and process_agreement.any_process(bool(stop)):
                return state, "interrupted"
        return state, "complete"

    def release(
        self,
        state: TrainingState,
        step: int,
        begun: int,
        seen: "PendingMetrics",
        since: tuple[int, float],
    ) -> bool:
        """Saves and charges, then shows what is released. True if the callback ends the run."""
        raw, rows = seen.take()
        size, seconds = self.trainer.plan.expected_batch_size, time.perf_counter() - since[1]
        if size and raw:
            raw[-1]["examples_per_second"] = round((step - since[0]) * size / seconds, 1)
        shown = self.trainer.released(state)
        if jax.process_count() > 1:
            check_replicas(state, self.trainer.mesh)

        evaluate = self.evaluate
        metrics = None if evaluate is None else lambda: evaluate(shown.evaluated)

        def show(released: Metrics) -> None:
            self.progress.checkpoint(released)
            if raw:
                self.progress.raw(raw[-1])
            for warning in self.raw_warnings.of(raw):
                self.progress.warn(warning)

        self.save_sampler_state()
        self._fixed = self.fixed(state)
        with self.run.stopwatch.part("checkpoints"):
            self.run.release(step, begun, self.halves(state), raw, rows, metrics, show)
        if self.evaluate is None and self.callback is None:
            return False  # the checkpoint is written while the next steps run
        released = self.finish_release()  # charged before user code sees anything
        if self.callback is None or released is None:
            return False
        answer = self.callback(shown, released)
        wants_end = isinstance(answer, bool | np.bool_) and bool(answer)
        return bool(process_agreement.from_first_process(float(wants_end))[0])

    def finish_release(self, *, if_ready: bool = False) -> Metrics | None:
        with self.run.stopwatch.part("checkpoints"):
            return self.run.finish_release(if_ready=if_ready)

    def keep_unreleased(
        self, state: TrainingState, step: int, begun: int, seen: "PendingMetrics"
    ) -> None:
        """Saves the state privately and releases nothing. Only with a single process."""
        if jax.process_count() > 1:
            return  # the other processes may still be in a step
        raw, rows = seen.take()
        self.save_sampler_state()
        self.run.keep_unreleased(step, begun, self.halves(state), raw, rows)

    # The state and the batches of this attempt.

    def sampler_state_at(self, step: int) -> MinSepState | None:
        """What the sampler remembered before a step of this attempt, if it was saved."""
        run = self.run
        return run.sampler_states.load(step, run.attempt) if isinstance(run, FolderRun) else None

    def save_sampler_state(self) -> None:
        if isinstance(self.run, FolderRun) and self._sampler_state is not None:
            self.run.sampler_states.save(self._sampler_state, self.run.attempt)

    def halves(self, state: TrainingState) -> StateHalves:
        """The two halves of a state that are saved. What `fixed` returns is in neither."""
        trained, _ = split(state.params, self.trainer.trainable)
        shown = self.trainer.released(state)
        released = dataclasses.replace(shown, params=trained, model_state=None)
        return StateHalves(released, state.noise_state)

    def fixed(self, state: TrainingState) -> tuple[PyTree, PyTree]:
        """What no step changes: the frozen parameters and the model state."""
        return split(state.params, self.trainer.trainable)[1], state.model_state

    def joined_state(self, halves: StateHalves) -> TrainingState:
        released, (frozen, model_state) = halves.released, self._fixed
        return TrainingState(
            step=released.step,
            params=joined(released.params, frozen),
            opt_state=released.opt_state,
            noise_state=halves.private,
            average=released.average,
            model_state=model_state,
        )

    def batches_of_attempt(self) -> Batches:
        key = self.run.secrets.row_key if self.run.keeps else b""
        return dataclasses.replace(self.batches, seed=self.sampling_seed(), digest_key=key)

    def rows_between(self, first: int, stop: int) -> list[str]:
        """Digests of the rows of these steps, which are read from the data."""
        batches = self.batches_of_attempt().since(first, self.sampler_state_at(first))
        read = itertools.islice(batches, stop - first)
        return process_agreement.joined_digests([batch.digest for batch in read])

    def key_data(self) -> PyTree:
        """The key data of a step, placed on the mesh."""
        secrets = self.run.secrets
        key = np.asarray(jax.random.key_data(secrets.noise_key))
        key_data = {"noise": key, "loss": loss_key_data(self.sampling_seed())}
        mesh = self.batches.layout.mesh
        where = (
            self.batches.layout.sharding if mesh is None else NamedSharding(mesh, PartitionSpec())
        )
        return jax.tree.map(lambda x: jax.device_put(x, where), key_data)

    def sampling_seed(self) -> int:
        return getattr(self.run, "sampling_seed", self.run.secrets.sampling_seed)


class PendingMetrics:
    """Raw metrics of steps, fetched from the device a few steps later so that nothing waits."""

    def __init__(self) -> None:
        self._under_way: collections.deque[Metrics] = collections.deque()
        self._rows: list[Metrics] = []
        self._digests: list[bytes] = []

    def add(self, step: int, attempt: int, measured: Mapping[str, Any], digest: bytes) -> None:
        self._digests.append(digest)
        self._under_way.append({"step": step, "attempt": attempt, **measured})
        if len(self._under_way) > UNDER_WAY:
            self._rows.append(jax.device_get(self._under_way.popleft()))

    def take(self) -> tuple[list[Metrics], list[str]]:
        """Raw metrics and row digests since the last call. Waits for the running steps."""
        rows = self._rows + [jax.device_get(row) for row in self._under_way]
        digests = process_agreement.joined_digests(self._digests)
        self._rows, self._digests = [], []
        self._under_way.clear()
        return rows, digests


def loss_key_data(sampling_seed: int) -> np.ndarray:
    """The data of a threefry key for the loss, derived from the run's secret seed."""
    seed = sampling_seed.to_bytes(16, "little")
    hashed = hashlib.blake2b(b"loss", key=seed, digest_size=8).digest()
    return np.frombuffer(hashed, np.uint32)
