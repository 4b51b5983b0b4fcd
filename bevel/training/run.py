"""A run and its folder: what is on disk before anything is released, and how a run goes on.

    RUN/run.json           what ran: plan, program, versions, mesh, placement, data set, budget
    RUN/secrets.json       noise key and sampling seed; mode 0600
    RUN/ledger.jsonl       what was spent: bevel.accounting.Ledger
    RUN/checkpoints/STEP/  Orbax
    RUN/metrics.jsonl      what may be released: step, epsilon, evaluation, examples per second
    RUN/raw.jsonl          not private: training loss, norms, clipped fraction, batch sizes
    RUN/damaged/           checkpoints that could not be read

A release is: charge the ledger, save the checkpoint, and only when both are on disk write metrics
and raw rows, and call back. So a crash at any moment leaves steps that were released and charged,
and steps that were not released: those are run again, with the same noise, at no cost.
"""

import dataclasses
import datetime
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from bevel.accounting import Budget
from bevel.accounting.ledger import Ledger, LedgerRun
from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.execution_plan import DPExecutionPlan, PlanSecrets
from bevel.training.agreement import agreed, is_first, together
from bevel.training.checkpoint import Checkpoints, Meta, full_disk_explained
from bevel.training.records import METRICS, Records, plain, read_lines
from bevel.training.resume import attempt_to_take, differences
from bevel.training.secrets import FILE as SECRETS
from bevel.training.secrets import check_commitment, read_secrets, sync_folder, write_secrets

PyTree = Any
RUN, LEDGER = "run.json", "ledger.jsonl"
Metrics = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a run is kept.

    Changes what is released, and when:
      checkpoint_every: steps between two checkpoints. Evaluation and callbacks run at checkpoints.
      budget: what all runs of the ledger may spend; by default the plan's. A run ends before it
        would be exceeded.
      delta: at which epsilon is stated; by default the budget's.

    Changes where things are kept:
      ledger: by default `ledger.jsonl` in the run's folder. Runs on one data set share one.
      name: of the run in the ledger; by default the folder's.
      keep, keep_period: the newest checkpoints, and every one of a step that is a multiple.
      tensorboard: events beside the JSON lines, where tensorboardX is installed.

    Changes speed only:
      ahead: batches that are read while a step runs.
      compilations: sizes that batches are padded to, each with a program compiled ahead.

    progress: whether to show it; None shows it.
    """

    checkpoint_every: int = 100
    budget: Budget | None = None
    delta: float | None = None
    ledger: str | os.PathLike[str] | None = None
    name: str | None = None
    keep: int = 3
    keep_period: int | None = None
    tensorboard: bool = True
    ahead: int = 2
    compilations: int = 3
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "keep", "ahead", "compilations"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise FixArgumentsError(f"{name}={value!r}: give a whole number from 1 on.")


@dataclasses.dataclass
class Released:
    """A checkpoint that is being saved, and what may be written once it is there."""

    metrics: Metrics
    raw: list[Metrics]
    show: Callable[[Metrics], None]


class FolderRun:
    """A run in a folder. Use it as a context manager: it holds the ledger's lock."""

    keeps = True

    def __init__(self, folder: Path, plan: DPExecutionPlan, options: RunOptions) -> None:
        self.folder, self.plan, self.options = folder, plan, options
        self.attempt, self.begun, self._charged = 0, 0, 0
        self._restored = (0, 0)  # step and attempt of the checkpoint that it goes on from
        self._pending: Released | None = None
        self._records: Records | None = None
        self._ledger: Ledger | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.record = self._read_record()
        self.name = self.record.get("name") or options.name or folder.absolute().name
        if options.name not in (None, self.name):
            raise FixArgumentsError(
                f"{folder} holds the run {self.name!r}, and it was opened as {options.name!r}: "
                "leave the name out, or take another folder."
            )
        self.budget = options.budget or plan.budget
        self.delta = options.delta or (self.budget.delta if self.budget else None)
        if is_first():
            self._ledger = Ledger.open(
                options.ledger or folder / LEDGER,
                unit=plan.unit.name,
                relation=plan.neighboring_relation,
                budget=self.budget,
            )
        try:
            self.checkpoints = Checkpoints(
                folder, keep=options.keep, keep_period=options.keep_period
            )
            self.root = self._secrets()
            self._in_ledger = self._ledger_run() if self._ledger else None
            if is_first():
                self._records = Records(folder, tensorboard=options.tensorboard)
        except BaseException:
            self.close()
            raise

    # Beginning, and going on.

    def _read_record(self) -> dict[str, Any]:
        path = self.folder / RUN
        if not path.exists():
            return {}
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise RestoreCheckpointError(
                f"{path} is damaged ({error}): restore it from a copy."
            ) from error

    def _secrets(self) -> PlanSecrets:
        """Those of the run: new ones, unless it was begun before."""
        path = self.folder / SECRETS
        fresh = not (self.record or path.exists() or self.checkpoints.steps())
        if self._ledger and fresh and self.name in self._ledger.runs:
            raise FixArgumentsError(
                f"the ledger {self._ledger.path} has a run {self.name!r}, and {self.folder} is "
                "empty: give this run another name (RunOptions(name=...)), or the folder of that "
                "run."
            )
        if fresh:
            # Not the plan's own: a plan may serve several runs, and no two may have one key.
            known = self.plan.secrets if self.plan.secrets.known else None
            secrets = known or PlanSecrets.new(self.plan.secrets.generator)
            if is_first():
                write_secrets(path, secrets)
        together("bevel: secrets written")
        return read_secrets(path)

    def _ledger_run(self, **checkpoint: Any) -> LedgerRun:
        assert self._ledger is not None
        return self._ledger.run(
            self.name, plan=self.plan.fingerprint(), key=self.root.commitment, **checkpoint
        )

    def resume(self, like: PyTree, frozen: list[str], exactly: dict[str, Any]) -> PyTree:
        """The state to go on from: the newest good checkpoint's, in the place of `like`.

        A run that was not begun begins with `like`, which is saved first.
        """
        self.exactly, self.frozen = exactly, frozen
        last, charged = self._ledger_position()
        found = self.checkpoints.newest_good(like, last, self._check)
        if found is None:
            if charged:
                raise RestoreCheckpointError(
                    f"the ledger has charges of run {self.name!r} up to step {charged}, and "
                    f"{self.checkpoints.folder} has no checkpoint: restore the checkpoints. The "
                    "run does not begin afresh, for what it released is spent."
                )
            self.checkpoints.save(like, self._meta(0))
            self.checkpoints.wait()
            return like
        state, meta = found
        self._restored = (meta.step, meta.attempt)
        if self._ledger:
            self._in_ledger = self._ledger_run(
                checkpoint_step=meta.step, checkpoint_head=meta.ledger
            )
        self.attempt = attempt_to_take(
            step=meta.step,
            attempt=meta.attempt,
            ledger_attempt=last,
            released_until=self._released_until(last),
            differences=differences(meta.exactly, exactly),
            composes_by_step=self.plan.composes_by_step,
        )
        if self.attempt != last:
            self.begun = self._charged = meta.step
        return state

    def _ledger_position(self) -> tuple[int, int]:
        """The last attempt that was charged, and up to where; and notes where it began."""
        if self._in_ledger:
            begun, charged = self._in_ledger.attempt_charged
            numbers = agreed(self._in_ledger.attempt, begun, charged)
        else:
            numbers = agreed(0, 0, 0)
        self.attempt, self.begun, self._charged = map(int, numbers)
        return self.attempt, self._charged

    def _released_until(self, attempt: int) -> int:
        """Up to which step there is a sign that an attempt released something."""
        lines = read_lines(self.folder / METRICS)
        steps = [line["step"] for line in lines if line.get("attempt", 0) == attempt]
        return max([0, *steps, *self.checkpoints.steps(), *self.checkpoints.damaged(attempt)])

    def _check(self, meta: Meta) -> None:
        """Raises unless a checkpoint belongs to this run."""
        where = f"checkpoint {self.checkpoints.folder / str(meta.step)}"
        if meta.plan != self.plan.fingerprint():
            raise RestoreCheckpointError(
                f"{where} is of another plan ({meta.plan[:16]}..., and this is "
                f"{self.plan.fingerprint()[:16]}...): go on with the plan that the run was begun "
                "with, or begin another run"
            )
        check_commitment(self.root, meta.key, where)
        if meta.frozen != self.frozen:
            raise RestoreCheckpointError(
                f"{where} was trained on other frozen parameters than those given now: give those "
                "that the run was begun with"
            )

    @property
    def secrets(self) -> PlanSecrets:
        """Of the present attempt."""
        return self.root.of_attempt(self.attempt)

    # Releasing.

    def affordable(self, step: int, stop: int) -> int:
        """The last step up to `stop` that the budget allows to go to from `step`."""
        mine = self._affordable(self._in_ledger, step, stop) if self._in_ledger else 0
        return int(agreed(mine)[0])

    def _affordable(self, run: LedgerRun, step: int, stop: int) -> int:
        def affords(to: int) -> bool:
            planned = self._planned(to)
            return planned is None or run.affords(*planned, attempt=self.attempt)

        if affords(stop):
            return stop
        low, high = step, stop  # going to `low` is paid for, going to `high` is too much
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if affords(middle) else (low, middle)
        return low

    def _planned(self, stop: int) -> Any:
        """What is to be charged before steps up to `stop` are released; None if nothing is."""
        if stop <= self._charged:
            return None
        planned = self.plan.charge(self._charged, stop, self.begun)
        return None if planned.stop <= self._charged else planned

    def charge(self, stop: int) -> None:
        """Charges the steps before `stop` that are not charged yet; on disk when it returns."""
        planned = self._planned(stop)
        if planned is None:
            return
        if self._ledger and self._in_ledger:
            with full_disk_explained(self._ledger.path):
                self._in_ledger.charge(*planned, attempt=self.attempt)
        together("bevel: charged")
        self._charged = planned.stop

    def release(
        self,
        step: int,
        state: PyTree,
        raw: list[Metrics],
        metrics: Callable[[], Mapping[str, Any]],
        show: Callable[[Metrics], None],
        *,
        again: bool = False,
    ) -> Metrics:
        """Charges, begins to save, and computes `metrics` meanwhile.

        When the checkpoint is there, `finish_release` writes them and shows them; what is returned
        may be seen then, and not before. With `again` the checkpoint is
        there already, and only what comes after it is made up for.
        """
        self.finish_release()
        self.charge(step)
        if not again:
            self.checkpoints.save(state, self._meta(step))
        line = {"step": step, "epsilon": self._epsilon(), "delta": self.delta}
        line |= {"attempt": self.attempt, **metrics()}
        self._pending = Released(line, raw, show)
        return line

    def finish_release(self, *, if_ready: bool = False) -> None:
        """Waits for the checkpoint, then writes and shows what was released with it.

        With `if_ready`, only if nobody has to wait. Several processes wait together, so they do it
        at the next release.
        """
        if self._pending is None:
            return
        if if_ready and (jax.process_count() > 1 or self.checkpoints.is_saving()):
            return
        self.checkpoints.wait()
        released, self._pending = self._pending, None
        if self._records:
            with full_disk_explained(self.folder):
                self._records.release(released.metrics, released.raw)
        released.show(released.metrics)

    def needs_metrics(self, step: int) -> bool:
        """Whether a checkpoint was saved and its metrics were not: the run ended in between."""
        same = self._restored == (step, self.attempt)
        missing = self._records and same and step and not self._records.released(*self._restored)
        return bool(agreed(float(bool(missing)))[0])

    def _epsilon(self) -> float | None:
        known = self._ledger is not None and self.delta is not None and self._charged
        spent = self._ledger.spent(self.delta).epsilon if self._ledger and known else 0.0
        (epsilon,) = agreed(spent)
        return epsilon if self.delta is not None else None

    def _meta(self, step: int) -> Meta:
        return Meta(
            step=step,
            attempt=self.attempt,
            plan=self.plan.fingerprint(),
            key=self.root.commitment,
            ledger=self._ledger.head if self._ledger else "",
            exactly=plain(self.exactly),
            frozen=self.frozen,
        )

    # Writing down what ran.

    def write_record(self, **what: Any) -> None:
        """Adds to run.json, which is replaced as a whole."""
        self.record |= {"name": self.name, **what}
        if not is_first():
            return
        beside = self.folder / f".{RUN}"
        with beside.open("w") as file:
            json.dump(plain(self.record), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.folder / RUN)
        sync_folder(self.folder)

    def close(self) -> None:
        for part in ("checkpoints", "_records", "_ledger"):
            opened = getattr(self, part, None)
            if opened is not None:
                opened.close()

    def __enter__(self) -> "FolderRun":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
