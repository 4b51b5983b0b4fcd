"""`RunLedger`: the charges of one run, and how many more steps the budget allows."""

import threading
from pathlib import Path
from typing import Any

from bevel.accounting import Budget
from bevel.accounting.ledger import Ledger, LedgerRun
from bevel.accounting.ledger.anchor import HASH
from bevel.errors import FixArgumentsError, RestoreCheckpointError, RestoreLedgerError
from bevel.execution_plan import DPExecutionPlan
from bevel.file_errors import explain_file_errors
from bevel.training.checkpoint_metadata import CheckpointMetadata
from bevel.training.folder import LEDGER_HEAD, RELEASED, write_atomically
from bevel.training.process_agreement import barrier, from_first_process, is_first
from bevel.training.stated_epsilon import Counts, StatedEpsilon


class RunLedger:
    """The charges of a run. Only the first process opens the ledger, and the others follow it.

    Two threads of a run use it: one releases while the other asks how far the budget allows.

    Attributes:
      attempt: the current attempt. Every attempt has different noise and batches.
      attempt_start: the first step of the current attempt.
      charged: steps before this one are charged.
      released: steps before this one count as released. More steps may be charged in advance.
    """

    def __init__(
        self,
        path: Path,
        plan: DPExecutionPlan,
        name: str,
        budget: Budget | None,
        anchor: Any,
        private: Path,
        *,
        releases_every: int = 1,
    ) -> None:
        self.path, self.plan, self.name, self._head_path = path, plan, name, private / LEDGER_HEAD
        if path.is_dir():
            raise FixArgumentsError(f"the ledger {path} is a folder. Pass the path of a file.")
        head = _head(self._head_path)
        if head is not None and not HASH.fullmatch(head):
            raise RestoreCheckpointError(f"{self._head_path} is damaged: restore it from a backup.")
        if head is not None and not path.exists():
            raise RestoreLedgerError(
                f"the ledger {path} is missing, but run {name!r} was charged in it. Restore the "
                "ledger: without it, it is unknown what was spent."
            )
        self.attempt, self.attempt_start, self.charged, self.released = 0, 0, 0, 0
        self._ledger: Ledger | None = None
        self._run: LedgerRun | None = None
        self._stated = StatedEpsilon(plan, releases_every)
        self._changing = threading.RLock()  # held while the totals are changed or read
        if is_first():
            self._ledger = Ledger.open(
                path,
                unit=plan.unit.name,
                relation=plan.neighboring_relation,
                budget=budget,
                anchor=anchor,
            )
            try:
                if self._ledger.line_count == 1 and path.parent.name == RELEASED:
                    with explain_file_errors(path):
                        path.chmod(0o644)  # created with 0600, but this one may be shown to anyone
                if head is not None:
                    self._ledger.check_head(head)
            except BaseException:
                self.close()
                raise

    def check_is_new(self, folder: Path) -> None:
        """Raises if the ledger already has a run of this name. Call this if the folder is empty."""
        if self._ledger and self.name in self._ledger.runs:
            raise FixArgumentsError(
                f"the ledger {self.path} already has a run {self.name!r}, but {folder} is empty. "
                "Pass the folder of that run, or another name with RunOptions(name=...)."
            )

    def join(self, key: str) -> None:
        """Reads what the run with this commitment to its key has charged and released."""
        numbers: list[float] = [0, 0, 0, 0]
        if self._ledger:
            run = self._ledger.run(self.name, plan=self.plan.fingerprint(), key=key)
            self._run = run
            numbers = [run.attempt, *run.attempt_charged, run.released_until]
        numbers = from_first_process(*numbers)
        self.attempt, self.attempt_start, self.charged, self.released = map(int, numbers)

    def check_contains(self, checkpoint: CheckpointMetadata) -> None:
        """Raises unless the ledger contains the charges of a published checkpoint."""
        if self._ledger:
            self._ledger.run(
                self.name,
                plan=self.plan.fingerprint(),
                key=checkpoint.key,
                checkpoint_step=checkpoint.step,
                checkpoint_head=checkpoint.ledger,
            )
        known = (checkpoint.attempt, checkpoint.step) <= (self.attempt, self.released)
        if not known and checkpoint.step:
            raise RestoreLedgerError(
                f"run {self.name!r} has released checkpoint {checkpoint.step} of attempt "
                f"{checkpoint.attempt}, but the ledger {self.path} ends with step {self.released} "
                f"of attempt {self.attempt}. Restore the ledger that belongs to this run."
            )

    def charged_for(self, stop: int, content: str) -> bool:
        """Returns whether the current attempt was charged for this content, released at `stop`."""
        same = bool(content) and self._run is not None and self._run.content_of(stop) == content
        return bool(from_first_process(float(same))[0])

    def begin_attempt(self, step: int) -> None:
        """Starts an attempt: steps from `step` on get fresh noise and are charged again."""
        with self._changing:
            self.attempt += 1
            self.attempt_start = self.charged = self.released = step

    @property
    def head(self) -> str:
        """The hash of the last line. Empty in all processes except the first."""
        return self._ledger.head if self._ledger else ""

    def affordable(self, step: int, stop: int) -> int:
        """Returns the last step up to `stop` that a run at `step` can reach within the budget."""
        affordable = self._affordable(self._run, step, stop) if self._run else 0
        return int(from_first_process(affordable)[0])

    def _affordable(self, run: LedgerRun, step: int, stop: int) -> int:
        def affords(target: int, **options: bool) -> bool:
            with self._changing:
                planned = self._planned(target)
                return planned is None or run.affords(*planned, attempt=self.attempt, **options)

        # Fewer steps never cost more, so one answer for the whole plan is enough. `Ledger` checks
        # the budget again when it charges.
        if affords(self.plan.iterations, look_ahead=False) or affords(stop):
            return stop
        low, high = step, stop  # `low` is affordable, `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if affords(middle) else (low, middle)
        return low

    def _planned(self, stop: int) -> Any:
        """Returns the charge that must precede a release of steps up to `stop`, if any."""
        if stop <= self.charged:
            return None
        planned = self.plan.charge(self.charged, stop, self.attempt_start)
        return None if planned.stop <= self.charged else planned

    def release(self, stop: int, content: str) -> None:
        """Records that steps before `stop` are released, and charges those that are not charged.

        The ledger is on disk when this returns. `content` is a keyed digest of the release.
        """
        with self._changing:
            planned = self._planned(stop)
            if self._run:
                charge, mark = self._run.charge, self._run.release
                if planned is not None:
                    charge(*planned, attempt=self.attempt, released=stop, content=content)
                elif stop > self.released:
                    mark(stop, attempt=self.attempt, content=content)
                write_atomically(self._head_path, self.head, private=True)
            barrier("bevel: charged")
            self.charged = self.charged if planned is None else planned.stop
            self.released = max(self.released, stop)

    # What was spent.

    def epsilon(self, delta: float | None) -> float | None:
        """Returns the epsilon spent by all runs of the ledger. None without a delta.

        It is exact once the last step of the plan is released. Before, it may be up to `TOLERANCE`
        too high, and is never too low (`accounting.ledger.release_epsilon`). It depends only on the
        ledger and on public settings, so a release that is repeated after a crash gets the same.
        """
        if delta is None:
            return None
        spent = 0.0
        if self._run and self.charged:
            with self._changing:
                counts = self._run.counts()
            spent = self._epsilon_of(counts, delta, self.released)
        return from_first_process(spent)[0]

    def prepare(self, stop: int, delta: float | None) -> None:
        """Computes the epsilon of the next release ahead, so that `epsilon` finds it in a cache.

        If another charge is added meanwhile, `epsilon` computes its own.
        """
        if delta is None or not self._run:
            return
        with self._changing:
            planned = self._planned(stop)
            run, attempt = self._run, self.attempt
            counts = run.counts_with(*planned, attempt=attempt) if planned else run.counts()
        self._epsilon_of(counts, delta, stop)

    def _epsilon_of(self, counts: Counts, delta: float, released: int) -> float:
        spent = self._stated.epsilon(counts, delta, released)
        budget = self._ledger.terms.budget if self._ledger else None
        # The charge was accepted, so the exact epsilon is within the budget.
        return min(spent, budget.epsilon) if budget and budget.delta == delta else spent

    def close(self) -> None:
        if self._ledger:
            self._ledger.close()


def _head(path: Path) -> str | None:
    """The hash of the last line that this run wrote. A ledger without it was rolled back."""
    try:
        with explain_file_errors(path, but=(FileNotFoundError,)):
            return path.read_bytes().decode("latin1")
    except FileNotFoundError:
        return None
