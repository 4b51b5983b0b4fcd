"""The ledger: what was spent on a data set, on disk before any of it is released."""

import operator
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.accounting.ledger.books import Books, Charge
from bevel.accounting.ledger.event_json import event_to_json
from bevel.accounting.ledger.hash_chain import START, line_of, links, split_torn
from bevel.accounting.ledger.locked_file import LockedFile
from bevel.accounting.ledger.terms import Budget, Terms
from bevel.errors import FixArgumentsError, RestoreLedgerError, StopRunError

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation

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
        self, path: Path, terms: Terms, books: Books, hashes: list[str], file: LockedFile | None
    ) -> None:
        self.path, self.terms = path, terms
        self._books, self._hashes, self._file = books, hashes, file
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
    ) -> "Ledger":
        """Opens a ledger for writing, or begins one. One process at a time can have it open.

        Args:
          unit: what is protected: 'example' or 'user'. As it was when the ledger was begun.
          relation: the neighbouring relation, likewise.
          budget: what all runs may spend, likewise: it is fixed when the ledger is begun.
          wait: wait for a run that has the ledger open, instead of raising.

        A torn last line is cut off, with a warning: the step was never released. Any other damage
        is a `RestoreLedgerError`.
        """
        terms = Terms(unit, getattr(relation, "name", relation), budget)
        file = LockedFile(path, wait=wait)
        try:
            lines, torn = split_torn(file.read())
            if not lines:
                _check_begun(torn, file.path)
                file.cut(0)
                text, digest = line_of(terms.entry(), 0, START)
                file.append(text)
                return cls(file.path, terms, Books(), [digest], file)
            written, books, hashes = _read(lines, file.path)
            written.check_same(terms, str(file.path))
            if torn:
                _notice(file.path, torn)
                file.cut(len(lines))
            return cls(file.path, written, books, hashes, file)
        except BaseException:
            file.close()
            raise

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Ledger":
        """The ledger as it stands, to look at: needs no lock, and changes nothing."""
        place = Path(path)
        try:
            lines, torn = split_torn(place.read_bytes())
        except FileNotFoundError:
            raise FixArgumentsError(f"there is no ledger at {place}.") from None
        if not lines:
            raise RestoreLedgerError(f"{place} has no whole line: nothing was ever charged to it.")
        ledger = cls(place, *_read(lines, place), None)
        if torn:
            _notice(place, torn)
        return ledger

    def run(
        self,
        name: str,
        *,
        plan: str,
        key: str,
        checkpoint_step: int = 0,
        checkpoint_head: str | None = None,
    ) -> "LedgerRun":
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
        if checkpoint_head is not None and checkpoint_head not in self._hashes:
            raise RestoreLedgerError(
                f"the checkpoint of run {name!r} was written beside a ledger with a line of hash "
                f"{checkpoint_head}, and {self.path} has none such: lines are missing, or it is "
                "another ledger. Restore the one that belongs to the checkpoint."
            )
        return run

    @property
    def head(self) -> str:
        """Hash of the last line: keep it with every checkpoint."""
        return self._hashes[-1]

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(self._books.runs)

    def spent(self, delta: float | None = None) -> "Spent":
        """What was spent so far, at `delta` (by default the budget's). Loads dp-accounting."""
        from bevel.accounting.ledger.spent import spent_by

        return spent_by(self._books, self.terms, delta)

    def _append(self, charge: Charge) -> None:
        if self._file is None:
            raise FixArgumentsError(
                f"{self.path} is not open for writing: use `with Ledger.open(...)`."
            )
        self._check(charge)
        text, digest = line_of(charge.entry(), len(self._hashes), self.head)
        self._file.append(text)
        self._books.add(charge)
        self._hashes.append(digest)

    def _check(self, charge: Charge) -> None:
        """Raises unless a charge may come next and is within the budget."""
        self._books.check(charge)
        if self.terms.budget is not None:
            if self._allowance is None:
                from bevel.accounting.ledger.allowance import Allowance

                self._allowance = Allowance(self.terms.budget, self.terms.relation)
            self._allowance.check(self._books, charge)

    def close(self) -> None:
        """Gives the lock back. Reading goes on working."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class LedgerRun:
    """One run of a ledger: it charges steps before they are released."""

    def __init__(self, ledger: Ledger, name: str, plan: str, key: str) -> None:
        self.ledger, self.name, self.plan, self.key = ledger, name, plan, key

    @property
    def charged_until(self) -> int:
        """Steps before this one are charged, by this attempt or an earlier one."""
        books = self.ledger._books.runs.get(self.name)
        return 0 if books is None else books.reached

    @property
    def attempt(self) -> int:
        """The attempt that the last charge was for; 0 before any."""
        books = self.ledger._books.runs.get(self.name)
        return 0 if books is None else books.last.attempt

    @property
    def attempt_charged(self) -> tuple[int, int]:
        """The first step of the present attempt, and the step after the last one that it charged.

        Both 0 before any charge.
        """
        books = self.ledger._books.runs.get(self.name)
        return (0, 0) if books is None else (books.begun, books.last.stop)

    def affords(
        self,
        first: int,
        stop: int,
        event: "DpEvent | Mapping[str, Any]",
        *,
        attempt: int | None = None,
    ) -> bool:
        """Whether `charge` with these arguments is within the budget. Writes nothing."""
        try:
            self.ledger._check(self._charge(first, stop, event, attempt))
        except StopRunError:
            return False
        return True

    def charge(
        self,
        first: int,
        stop: int,
        event: "DpEvent | Mapping[str, Any]",
        *,
        attempt: int | None = None,
    ) -> None:
        """Charges the steps `first`, ..., `stop - 1`, and is on disk when it returns.

        Call it before anything computed from those steps leaves the trainer. A range may reach
        ahead: to the end of the run, say, if its steps have only one event together.

        Args:
          event: what these steps release, all of them together; or its `event_to_json`.
          attempt: by default the present one, `run.attempt`; one more, for steps that are run
            again with fresh noise.

        Which charge may follow which is in books.py. Raises `StopRunError` if the budget would be
        exceeded; nothing is written then.
        """
        self.ledger._append(self._charge(first, stop, event, attempt))

    def _charge(self, first: int, stop: int, event: Any, attempt: int | None) -> Charge:
        number = self.attempt if attempt is None else attempt
        steps = (_whole("first", first), _whole("stop", stop))
        return Charge(self.name, self.plan, self.key, number, *steps, event_to_json(event))


def _read(lines: bytes, path: Path) -> tuple[Terms, Books, list[str]]:
    """Everything that whole lines say, checked."""
    where = str(path)
    chain = links(lines.splitlines(keepends=True), where)
    begin = next(chain)
    terms, books, hashes = Terms.of_entry(begin.entry, where), Books(), [begin.hash]
    for link in chain:
        try:
            charge = Charge.of_entry(link.entry, f"{where}, line {link.line + 1},")
            event_to_json(charge.event)
            books.add(charge)
        except FixArgumentsError as error:
            raise RestoreLedgerError(
                f"{where}, line {link.line + 1} cannot follow the lines before it: {error}"
            ) from error
        hashes.append(link.hash)
    return terms, books, hashes


def _check_begun(torn: bytes, path: Path) -> None:
    """Raises unless a file without a whole line can be a ledger whose first write was cut short."""
    begin = b'{"entry":{"budget":'
    if torn.strip(b"\0") and torn[: len(begin)] != begin[: len(torn)]:
        raise RestoreLedgerError(f"{path} is not a ledger: it is left as it is. Give another path.")


def _whole(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise FixArgumentsError(f"{name}={value!r}: give a whole number of at least 0.") from None


def _notice(path: Path, torn: bytes) -> None:
    warnings.warn(
        f"{path} ends in {len(torn)} bytes that are not a whole line: a write that was cut short. "
        "They are left out; the step they were for was never released.",
        stacklevel=3,
    )
