"""The ledger: what was spent on a data set, on disk before any of it is released."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.accounting.ledger.anchor import Anchor
from bevel.accounting.ledger.contents import Contents, read_contents
from bevel.accounting.ledger.durable_files import begin_file
from bevel.accounting.ledger.entries import Charge, Release
from bevel.accounting.ledger.hash_chain import START, line_of
from bevel.accounting.ledger.header import Budget, LedgerHeader
from bevel.accounting.ledger.ledger_run import LedgerRun
from bevel.accounting.ledger.locked_file import LockedFile
from bevel.accounting.ledger.torn_line import keep_torn
from bevel.errors import FixArgumentsError, RestoreLedgerError

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation

    from bevel.accounting.ledger.allowance import Allowance
    from bevel.accounting.ledger.spent import Spent


class Ledger:
    """An append-only file of JSON lines, a hash chain, of what runs on one data set have spent.

    `Ledger.open` for a run, `Ledger.read` to look. A run charges steps before it releases anything
    computed from them:

        with Ledger.open(path, unit="example", relation="ADD_OR_REMOVE_ONE") as ledger:
            run = ledger.run("first", plan=fingerprint, key=commitment)
            run.charge(0, 1, event)    # on disk when this returns; now step 0 may be released

    Formal guarantee: when `charge` has returned, the charge is in the file, once, whatever happens
    to the process or the machine; if it raises or never returns, it is in the file once or not at
    all, and nothing was released. What is in the file and does not fit together is an error.

    Opening reads the whole file; a charge is one write and one sync.
    """

    def __init__(
        self,
        path: Path,
        found: Contents,
        file: LockedFile | None = None,
        anchor: Anchor | None = None,
    ) -> None:
        self.path, self.terms = path, found.terms
        self._books, self._hashes = found.books, found.hashes
        self._file, self._anchor = file, anchor
        self._allowance: Allowance | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        unit: str,
        relation: "str | NeighboringRelation",
        budget: Budget | None = None,
        wait: bool = False,
        anchor: str | os.PathLike[str] | None = None,
    ) -> "Ledger":
        """Opens a ledger for writing, or begins one where there is no file.

        One process at a time can have it open.

        Args:
          unit: what is protected: 'example' or 'user'. As it was when the ledger was begun.
          relation: the neighbouring relation, likewise.
          budget: what all runs may spend, likewise: it is fixed when the ledger is begun.
          wait: wait for a run that has the ledger open, instead of raising.
          anchor: a file on other storage that keeps the ledger's head, so that a ledger that was
            rolled back or exchanged is found, with its folder or without. Begun if it is missing.

        A last line that was cut short is taken off, with a warning: what it was for was never
        released. Its bytes are kept in a file beside the ledger. Any other damage, and an empty
        file, is a `RestoreLedgerError`, and the file is left as it is.
        """
        terms = LedgerHeader(unit, getattr(relation, "name", relation), budget)
        place = Path(path)
        elsewhere = None if anchor is None else Anchor(anchor)
        if elsewhere:
            elsewhere.check_begun(place)
        begin_file(place, line_of(terms.entry(), 0, START)[0])
        file = LockedFile(place, wait=wait)
        try:
            found = read_contents(file.read(), place)
            found.terms.check_same(terms, str(place))
            if elsewhere:
                elsewhere.check(found.hashes, place)
            if found.torn:
                kept = keep_torn(found.torn, place)
                file.cut(len(found.torn))
                _notice_torn(place, found.torn, f" They are kept in {kept}.")
            if found.lacks_end:
                file.append(b"\n")
                _notice_end(place)
            if elsewhere:
                elsewhere.write(found.hashes)
            return cls(place, found, file, elsewhere)
        except BaseException:
            file.close()
            raise

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """The ledger as it stands, to look at: needs no lock, and changes nothing."""
        place = Path(path)
        try:
            found = read_contents(place.read_bytes(), place)
        except FileNotFoundError:
            raise FixArgumentsError(f"there is no ledger at {place}.") from None
        if found.torn:
            _notice_torn(place, found.torn, "")
        if found.lacks_end:
            _notice_end(place)
        return cls(place, found)

    def run(
        self,
        name: str,
        *,
        plan: str,
        key: str,
        checkpoint_step: int = 0,
        checkpoint_head: str | None = None,
    ) -> LedgerRun:
        """A run that begins, or goes on.

        Args:
          name: of the run. One that is in the ledger goes on.
          plan: fingerprint of everything that the guarantee depends on. A run has one plan.
          key: commitment to the run's key, of `key_commitment`. Never the key.
          checkpoint_step: steps that the state to go on from has taken.
          checkpoint_head: `ledger.head` as it was kept with that state. It finds a ledger that was
            cut off or exchanged as a whole.
        """
        self._books.check_plan(name, plan)
        run = LedgerRun(self, name, plan, key)
        if checkpoint_step > run.charged_until:
            raise RestoreLedgerError(
                f"the checkpoint of run {name!r} is at step {checkpoint_step}, and {self.path} has "
                f"charges up to step {run.charged_until}: steps were released that are not in it. "
                "Restore the ledger that belongs to the checkpoint."
            )
        if checkpoint_head is not None:
            self.check_head(checkpoint_head)
        return run

    @property
    def head(self) -> str:
        """Hash of the last line: keep it with every checkpoint."""
        return self._hashes[-1]

    @property
    def line_count(self) -> int:
        return len(self._hashes)

    def check_head(self, head: str) -> None:
        """Raises unless `head`, which was this ledger's at some time, is the hash of a line."""
        if head not in self._hashes:
            raise RestoreLedgerError(
                f"{self.path} has no line with the hash {head}, which was its head at some time: "
                "lines are missing, or it is another ledger. Restore the one that had it."
            )

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(self._books.runs)

    def released(self, run: str) -> tuple[int, int]:
        """The present attempt of a run, and the step up to which it released; (0, 0) if unknown."""
        books = self._books.runs.get(run)
        return (0, 0) if books is None else (books.last.attempt, books.released)

    def spent(self, delta: float | None = None) -> "Spent":
        """What was spent so far, at `delta` (by default the budget's). Loads dp-accounting."""
        from bevel.accounting.ledger.spent import spent_by

        return spent_by(self._books, self.terms, delta)

    def _append(self, entry: Charge | Release) -> None:
        if self._file is None:
            raise FixArgumentsError(
                f"{self.path} is not open for writing: use `with Ledger.open(...)`."
            )
        self._check(entry)
        text, digest = line_of(entry.entry(), len(self._hashes), self.head)
        self._file.append(text)
        self._books.add(entry)
        self._hashes.append(digest)
        if self._anchor is not None:
            self._anchor.write(self._hashes)

    def _check(self, entry: Charge | Release) -> None:
        """Raises unless an entry may come next and is within the budget."""
        self._books.check(entry)
        if self.terms.budget is not None and isinstance(entry, Charge):
            if self._allowance is None:
                from bevel.accounting.ledger.allowance import Allowance

                self._allowance = Allowance(self.terms.budget, self.terms.relation)
            self._allowance.check(self._books, entry)

    def close(self) -> None:
        """Gives the lock back. Reading goes on working."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _notice_torn(path: Path, torn: bytes, kept: str) -> None:
    warnings.warn(
        f"{path} ends in {len(torn)} bytes that are not a whole line: a write that was cut short. "
        f"They are left out; what they were for was never released.{kept}",
        stacklevel=3,
    )


def _notice_end(path: Path) -> None:
    warnings.warn(
        f"the last line of {path} lacks its end: a write that was cut short, or an editor took it "
        "away. The line counts.",
        stacklevel=3,
    )
