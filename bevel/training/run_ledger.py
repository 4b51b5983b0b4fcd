"""A run in its ledger: where it stands, what it can afford, and what it has charged."""

from pathlib import Path
from typing import Any

from bevel.accounting import Budget
from bevel.accounting.ledger import Ledger, LedgerRun
from bevel.accounting.ledger.anchor import HASH
from bevel.errors import FixArgumentsError, RestoreCheckpointError, RestoreLedgerError
from bevel.execution_plan import DPExecutionPlan
from bevel.training.checkpoint import Meta
from bevel.training.disk_full import full_disk_explained
from bevel.training.folder import HEAD, RELEASED, write_whole
from bevel.training.process_agreement import agreed, is_first, together


class RunLedger:
    """The first process has the ledger open; the others follow what it says.

    Attributes:
      attempt: under which steps are charged; another one has other noise and batches.
      begun: the first step of that attempt.
      charged: steps before this one are charged.
      released: steps before this one count as released. A charge may reach further ahead.
    """

    def __init__(
        self,
        path: Path,
        plan: DPExecutionPlan,
        name: str,
        budget: Budget | None,
        anchor: Any,
        private: Path,
    ) -> None:
        self.path, self.plan, self.name, self._head = path, plan, name, private / HEAD
        if path.is_dir():
            raise FixArgumentsError(f"the ledger {path} is a folder: give the path of a file.")
        # The last line that this run wrote: a ledger without it was put back from a copy.
        known = self._head.read_bytes().decode("latin1") if self._head.exists() else None
        if known is not None and not HASH.fullmatch(known):
            raise RestoreCheckpointError(f"{self._head} is damaged: restore it from a copy.")
        if known is not None and not path.exists():
            raise RestoreLedgerError(
                f"the ledger {path} is missing, and the checkpoint of run {name!r} was charged in "
                "it. Restore the ledger; without it, what was spent is not known."
            )
        self.attempt, self.begun, self.charged, self.released = 0, 0, 0, 0
        self._ledger: Ledger | None = None
        self._run: LedgerRun | None = None
        if is_first():
            begins = not path.exists()
            self._ledger = Ledger.open(
                path,
                unit=plan.unit.name,
                relation=plan.neighboring_relation,
                budget=budget,
                anchor=anchor,
            )
            if begins and path.parent.name == RELEASED:
                path.chmod(0o644)  # ledgers begin with 0600; this one may be shown to anyone
            try:
                if known is not None:
                    self._ledger.check_head(known)
            except BaseException:
                self.close()
                raise

    def check_is_new(self, folder: Path) -> None:
        """Raises if the ledger has a run of this name, and the folder is empty."""
        if self._ledger and self.name in self._ledger.runs:
            raise FixArgumentsError(
                f"the ledger {self.path} has a run {self.name!r}, and {folder} is empty: give this "
                "run another name (RunOptions(name=...)), or the folder of that run."
            )

    def join(self, key: str) -> None:
        """Finds the run, by the commitment to its key, and where it stands."""
        numbers: list[float] = [0, 0, 0, 0]
        if self._ledger:
            run = self._ledger.run(self.name, plan=self.plan.fingerprint(), key=key)
            self._run = run
            numbers = [run.attempt, *run.attempt_charged, run.released_until]
        self.attempt, self.begun, self.charged, self.released = map(int, agreed(*numbers))

    def check_has(self, checkpoint: Meta) -> None:
        """Raises unless the ledger has what a released checkpoint was charged for."""
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
                f"checkpoint {checkpoint.step} of attempt {checkpoint.attempt} of run "
                f"{self.name!r} was released, and the ledger {self.path} is at attempt "
                f"{self.attempt} and says that steps up to {self.released} were. Restore the "
                "ledger that belongs to it."
            )

    def charged_for(self, stop: int, content: str) -> bool:
        """Whether this is what the ledger says that the present attempt released up to `stop`."""
        mine = bool(content) and self._run is not None and self._run.content_of(stop) == content
        return bool(agreed(float(mine))[0])

    def begin_attempt(self, step: int) -> None:
        """From `step` on, steps are run again with fresh noise and are charged again."""
        self.attempt += 1
        self.begun = self.charged = self.released = step

    @property
    def head(self) -> str:
        """Hash of the last line; empty in all processes but the first."""
        return self._ledger.head if self._ledger else ""

    def affordable(self, step: int, stop: int) -> int:
        """The last step up to `stop` that the budget allows to go to from `step`."""
        mine = self._affordable(self._run, step, stop) if self._run else 0
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
        if stop <= self.charged:
            return None
        planned = self.plan.charge(self.charged, stop, self.begun)
        return None if planned.stop <= self.charged else planned

    def release(self, stop: int, content: str) -> None:
        """Has the ledger say that steps before `stop` are released; on disk when it returns.

        `content` is a keyed digest of what is released.
        """
        planned = self._planned(stop)
        if self._run:
            with full_disk_explained(self.path):
                if planned is not None:
                    self._run.charge(*planned, attempt=self.attempt, released=stop, content=content)
                elif stop > self.released:
                    self._run.release(stop, attempt=self.attempt, content=content)
                write_whole(self._head, self.head, private=True)
        together("bevel: charged")
        self.charged = self.charged if planned is None else planned.stop
        self.released = max(self.released, stop)

    def epsilon(self, delta: float | None) -> float | None:
        """Spent by all runs of the ledger; None without a delta."""
        if delta is None:
            return None
        spent = self._ledger.spent(delta).epsilon if self._ledger and self.charged else 0.0
        return agreed(spent)[0]

    def close(self) -> None:
        if self._ledger:
            self._ledger.close()
