"""A run without a folder: it has no ledger and no checkpoints."""

from collections.abc import Callable
from typing import Any

from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.training.metrics_files import checked_metrics
from bevel.training.run_options import RunOptions
from bevel.training.stated_epsilon import StatedEpsilon
from bevel.training.stopwatch import Stopwatch

PyTree = Any
Metrics = dict[str, Any]


class MemoryRun:
    """The interface of `FolderRun` without a folder: the caller decides what to release."""

    keeps, attempt = False, 0

    def __init__(
        self,
        plan: DPExecutionPlan,
        options: RunOptions,
        sampling_seed: int | None,
        reached: list[int],
        begin: int,
    ) -> None:
        self.plan, self._seed, self._reached = plan, sampling_seed, reached
        budget = options.budget or plan.budget
        self.budget, self.stopwatch = None, Stopwatch()
        self.delta = options.delta or (budget.delta if budget else None)
        self._stated = StatedEpsilon(plan, options.checkpoint_every)
        self._line: Metrics | None = None
        if begin < reached[0] and not plan.secrets.known:
            raise FixArgumentsError(
                "for a new run, make a new Trainer from the config, or a new plan; to go on, pass "
                f"the state that fit returned. This plan has already run {reached[0]} steps, and "
                f"running those from {begin} on would add the same noise again: subtracting the "
                "results would cancel it."
            )

    @property
    def secrets(self) -> PlanSecrets:
        return self.plan.secrets

    @property
    def sampling_seed(self) -> int:
        return self.secrets.sampling_seed if self._seed is None else self._seed

    def resume(
        self, like: PyTree, begin: PyTree, environment: dict[str, Any], rows_between: Any
    ) -> PyTree:
        return begin

    def last_release(self, step: int) -> int:
        return step

    def keep_unreleased(
        self, step: int, first: int, state: PyTree, raw: list[Metrics], rows: list[str]
    ) -> None:
        """Records that the noise of these steps was used, because the caller gets the state."""
        self._reached[0] = max(self._reached[0], step)

    def next_goal(self, step: int, stop: int) -> int:
        return stop

    def release(
        self,
        step: int,
        first: int,
        state: PyTree,
        raw: list[Metrics],
        rows: list[str],
        evaluate: Callable[[], Any] | None,
        show: Callable[[Metrics], None],
    ) -> None:
        self._reached[0] = max(self._reached[0], step)
        epsilon = None if self.delta is None else self._stated.of_steps(step, self.delta)
        line = {"step": step, "epsilon": epsilon, "delta": self.delta, "attempt": 0}
        if evaluate is not None:
            line |= checked_metrics(evaluate())
        show(line)
        self._line = line

    def finish_release(self, *, if_ready: bool = False) -> Metrics | None:
        line, self._line = self._line, None
        return line

    def seconds_of_releases(self) -> dict[str, float]:
        return {}

    def needs_metrics(self, step: int) -> bool:
        return False

    def take_fresh_attempt(self, why: list[str]) -> None:
        raise AssertionError("a run without a folder never runs released steps again")

    def restore_again(self, like: PyTree) -> PyTree:
        raise AssertionError("a run without a folder has no checkpoint")

    def write_record(self, **fields: Any) -> None:
        pass

    def write_private_record(self, **fields: Any) -> None:
        pass

    def __enter__(self) -> "MemoryRun":
        return self

    def __exit__(self, *error: Any) -> None:
        pass
