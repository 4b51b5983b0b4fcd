"""The ledger records what was spent on a data set, on disk before anything is released."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bevel.accounting.ledger.anchor import Anchor
from bevel.accounting.ledger.archive import (
    archived_lines,
    check_no_archives,
    check_not_set_back,
    new_archive,
    with_archives,
    write_archive,
)
from bevel.accounting.ledger.contents import Contents, read_contents
from bevel.accounting.ledger.durable_files import create_file
from bevel.accounting.ledger.entries import Charge, Release
from bevel.accounting.ledger.hash_chain import START, line_of
from bevel.accounting.ledger.header import Budget, LedgerHeader
from bevel.accounting.ledger.ledger_run import LedgerRun
from bevel.accounting.ledger.locked_file import LockedFile
from bevel.accounting.ledger.summary import Summary
from bevel.accounting.ledger.torn_line import save_torn
from bevel.checks import flag
from bevel.checks import path as checked_path
from bevel.errors import FixArgumentsError, RestoreLedgerError
from bevel.file_errors import explain_file_errors

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation

    from bevel.accounting.ledger.allowance import Allowance
    from bevel.accounting.ledger.spent import Spent


class Ledger:
    """An append-only file, a hash chain of JSON lines, of what the runs on one data set have spent.

    Use `Ledger.open` to write and `Ledger.read` to look. A run charges steps before it releases
    anything computed from them:

        with Ledger.open(path, unit="example", relation="ADD_OR_REMOVE_ONE") as ledger:
            run = ledger.run("first", plan=fingerprint, key=commitment)
            run.charge(0, 1, event)    # on disk when this returns; now step 0 may be released

    Formal guarantee: when `charge` has returned, the charge is in the file exactly once, whatever
    happens to the process or the machine. If `charge` raises or never returns, the charge is in the
    file once or not at all, and nothing was released. A file with inconsistent entries is an error.

    Opening a ledger reads the whole file, and adds up the lines after its last summary. A charge is
    one write and one sync.
    """

    def __init__(
        self,
        path: Path,
        contents: Contents,
        file: LockedFile | None = None,
        anchor: Anchor | None = None,
    ) -> None:
        self.path, self.terms = path, contents.header
        self._totals, self._hashes = contents.totals, contents.hashes
        self._segment = contents.segment
        self._file, self._anchor, self._believed = file, anchor, contents.believed
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
        """Opens a ledger for writing, or creates it if there is no file.

        Only one process at a time can have a ledger open.

        Args:
          unit: the privacy unit, 'example' or 'user'. It is fixed when the ledger is created.
          relation: the neighbouring relation, also fixed when the ledger is created.
          budget: what all runs may spend together, also fixed when the ledger is created.
          wait: if another run has the ledger open, wait for it instead of raising.
          anchor: a file on other storage that records the ledger's head. It shows if the ledger was
            rolled back or replaced, alone or with its whole folder. Created if it is missing.

        A last line that was cut short is removed with a warning, because its steps were never
        released. Its bytes are saved in a file beside the ledger. Any other damage, or an empty
        file, raises `RestoreLedgerError` and leaves the file unchanged.
        """
        header = LedgerHeader(unit, getattr(relation, "name", relation), budget)
        flag("wait", wait)
        file_path = Path(checked_path("path", path))
        with explain_file_errors(file_path):
            anchor_file = None if anchor is None else Anchor(anchor)
            if anchor_file:
                anchor_file.check_ledger_exists(file_path)
            check_no_archives(file_path)
            create_file(file_path, line_of(header.entry(), 0, START)[0])
            file = LockedFile(file_path, wait=wait)
            try:
                # Whoever can write to the ledger can append a summary that understates it. The
                # anchor vouches for the lines that it records, and later summaries are checked.
                trusted = anchor_file.lines() if anchor_file else None
                archived = archived_lines(file_path)
                contents = _contents(file.read(), file_path, trusted)
                check_not_set_back(file_path, len(contents.hashes), archived)
                contents.header.check_same(header, str(file_path))
                if anchor_file:
                    anchor_file.check(contents.hashes, file_path)
                saved = ""
                if contents.torn:
                    saved = f" The bytes are saved in {save_torn(contents.torn, file_path)}."
                    file.cut(len(contents.torn))
                if contents.lacks_newline:
                    file.append(b"\n")
                _warn_if_cut_short(file_path, contents, saved)
                if anchor_file:
                    anchor_file.write(contents.hashes)
                return cls(file_path, contents, file, anchor_file)
            except BaseException:
                file.close()
                raise

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, full: bool = False) -> "Ledger":
        """Reads a ledger without locking or changing it.

        With `full`, every line is added up, also those in the archives beside a compacted ledger,
        and each summary is compared with the sum. Otherwise the last summary is believed if the
        bytes before it have the stated hashes.
        """
        flag("full", full)
        file_path = Path(checked_path("path", path))
        with explain_file_errors(file_path):
            archived = archived_lines(file_path)
            try:
                contents = _contents(file_path.read_bytes(), file_path, 0 if full else None)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise FixArgumentsError(
                    f"there is no ledger at {file_path}: check the path."
                ) from None
        check_not_set_back(file_path, len(contents.hashes), archived)
        _warn_if_cut_short(file_path, contents)
        return cls(file_path, contents)

    def run(
        self,
        name: str,
        *,
        plan: str,
        key: str,
        checkpoint_step: int = 0,
        checkpoint_head: str | None = None,
    ) -> LedgerRun:
        """Starts a run, or resumes it if its name is in the ledger.

        Args:
          name: name of the run.
          plan: fingerprint of everything that the guarantee depends on. A run has one plan.
          key: commitment to the run's key, from `key_commitment`. Never pass the key itself.
          checkpoint_step: number of steps taken by the checkpoint that you resume from.
          checkpoint_head: `ledger.head` as saved with that checkpoint. It shows if the ledger was
            truncated or replaced as a whole.
        """
        self._totals.check_plan(name, plan)
        run = LedgerRun(self, name, plan, key)
        if checkpoint_step > run.charged_until:
            raise RestoreLedgerError(
                f"the checkpoint of run {name!r} is at step {checkpoint_step}, but {self.path} has "
                f"charges up to step {run.charged_until}, so released steps are missing from it. "
                "Restore the ledger that belongs to the checkpoint."
            )
        if checkpoint_head is not None:
            self.check_head(checkpoint_head)
        return run

    @property
    def head(self) -> str:
        """Hash of the last line. Save it with every checkpoint."""
        return self._hashes.head

    @property
    def line_count(self) -> int:
        return len(self._hashes)

    def check_head(self, head: str) -> None:
        """Raises unless `head`, an earlier head of this ledger, is the hash of one of its lines.

        Lines that were moved to an archive count: the archive is read and checked. The head
        vouches for the lines up to it, so summaries after it are not believed but checked.
        """
        line = self._hashes.line_of(head)
        with explain_file_errors(self.path):
            if line is None and self._hashes.archived:
                whole = with_archives(self.path.read_bytes(), self.path)
                line = read_contents(whole, self.path).hashes.line_of(head)
            if line is not None and line < self._believed:
                line = _contents(self.path.read_bytes(), self.path, line + 1).hashes.line_of(head)
        if line is None:
            raise RestoreLedgerError(
                f"{self.path} has no line with the hash {head}, which was once its head: lines are "
                "missing, or it is another ledger. Restore the ledger that has this line."
            )

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(self._totals.runs)

    def released(self, run: str) -> tuple[int, int]:
        """Returns a run's current attempt and the step it released up to, or (0, 0) if unknown."""
        totals = self._totals.runs.get(run)
        return (0, 0) if totals is None else (totals.last.attempt, totals.released_until)

    def spent(self, delta: float | None = None) -> "Spent":
        """Computes what was spent at `delta`, by default the budget's. Imports dp-accounting."""
        from bevel.accounting.ledger.spent import compute_spent

        return compute_spent(self._totals, self.terms, delta)

    def _append(self, entry: Charge | Release) -> None:
        self._check(entry)
        with explain_file_errors(self.path):
            self._write(entry)
            self._totals.add(entry)
            if self._segment.summary_is_due and self.terms.version >= 3:
                self._write(self._summary())
            if self._anchor is not None:
                self._anchor.write(self._hashes)

    def _write(self, entry: Charge | Release | Summary) -> bytes:
        """Appends a line to the file. It is on disk when this returns."""
        text, digest = line_of(entry.entry(), len(self._hashes), self.head)
        self._writable.append(text)
        self._segment.add(text, starts=isinstance(entry, Summary))
        self._hashes.append(digest)
        return text

    def _summary(self) -> Summary:
        return Summary(self._hashes[0], self._segment.digest, self._totals.to_json())

    @property
    def _writable(self) -> LockedFile:
        if self._file is None:
            raise FixArgumentsError(
                f"{self.path} is not open for writing. Use `with Ledger.open(...)`."
            )
        return self._file

    def compact(self) -> Path:
        """Moves all lines to an archive beside the ledger, which keeps its header and a summary.

        The chain goes on from the summary, so the head, the anchor and later charges stay valid.
        Returns the path of the archive. Keep it: `Ledger.read(path, full=True)` and checks of heads
        of earlier lines, which a run makes when it resumes, need it.
        """
        if self.terms.version < 3:
            raise FixArgumentsError(
                f"{self.path} has the format of version {self.terms.version}, which has no "
                "summaries: it can be continued, but not compacted."
            )
        with explain_file_errors(self.path):
            archive = new_archive(self.path, len(self._hashes))
            before = self._writable.read()
            summary = self._write(self._summary())
            if self._anchor is not None:
                self._anchor.write(self._hashes)  # first: the line that it records must stay known
            write_archive(archive, before, self._writable.mode)
            header = before[: before.index(b"\n") + 1]
            self._writable.replace(header + summary)
            self._hashes = self._hashes.compacted()
        return archive

    def _check(self, entry: Charge | Release, *, look_ahead: bool = True) -> None:
        """Raises unless the entry may come next and is within the budget."""
        self._totals.check(entry)
        if self.terms.budget is not None and isinstance(entry, Charge):
            if self._allowance is None:
                from bevel.accounting.ledger.allowance import Allowance

                self._allowance = Allowance(self.terms.budget, self.terms.relation)
            self._allowance.check(self._totals, entry, look_ahead=look_ahead)

    def close(self) -> None:
        """Releases the lock. The ledger can still be read."""
        file, self._file = self._file, None
        if file is not None:
            with explain_file_errors(self.path):
                file.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _contents(data: bytes, path: Path, trusted: int | None) -> Contents:
    """Reads a ledger whose summaries are believed among the first `trusted` lines, or all."""
    if trusted is not None:
        data = with_archives(data, path, trusted)
    return read_contents(data, path, trusted=trusted)


def _warn_if_cut_short(path: Path, contents: Contents, saved: str = "") -> None:
    if contents.torn:
        warnings.warn(
            f"{path} ends in {len(contents.torn)} bytes of an incomplete line, because a write was "
            f"cut short. They are not counted, because their steps were never released.{saved}",
            stacklevel=3,
        )
    if contents.lacks_newline:
        warnings.warn(
            f"the last line of {path} lacks its line feed, because a write was cut short or an "
            "editor removed it. The line is counted.",
            stacklevel=3,
        )
