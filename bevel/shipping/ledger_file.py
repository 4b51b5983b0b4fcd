"""The file of a ledger as an export and a verification need it: whole, and up to a line."""

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import NamedTuple

from bevel.accounting.ledger.archive import with_archives
from bevel.accounting.ledger.contents import Contents, read_contents
from bevel.accounting.ledger.event_json import EventJson
from bevel.accounting.ledger.torn_line import is_complete, split_lines
from bevel.accounting.ledger.totals import event_of_counts
from bevel.errors import FixArgumentsError


class LedgerFile(NamedTuple):
    """The complete lines of a ledger, and what they say. A last line cut short is left out."""

    path: Path
    lines: list[bytes]
    contents: Contents

    @property
    def data(self) -> bytes:
        return b"".join(self.lines)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def event(self) -> EventJson:
        """Everything that was charged, as one event."""
        return event_of_counts(self.contents.totals.events())

    def up_to(self, lines: int) -> "LedgerFile":
        """The ledger as it was when it had this many lines."""
        return _of_lines(self.path, self.lines[:lines])

    def lines_of(self, run: str) -> list[list[int]]:
        """The ranges of lines, counted from 1, that belong to a run."""
        entries = (json.loads(line)["entry"] for line in self.lines)
        numbers = [n for n, entry in enumerate(entries, 1) if entry.get("run") == run]
        # Consecutive numbers have the same difference to their position.
        groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
        ranges = ([number for _, number in group] for _, group in groups)
        return [[numbers[0], numbers[-1]] for numbers in ranges]

    def epsilon(self, delta: float) -> float:
        """The epsilon of everything that was charged, with dp-accounting."""
        from bevel.accounting.ledger.spent import epsilon_of

        totals, relation = self.contents.totals, self.contents.header.relation
        return epsilon_of(totals.events(), delta, relation)


def read_ledger(path: str | os.PathLike[str]) -> LedgerFile:
    """Reads every line of a ledger, with those in its archives, without locking or changing it.

    Raises:
      FixArgumentsError: there is no such file.
      RestoreLedgerError: it is damaged, so what was spent is unknown.
    """
    file = Path(path)
    try:
        data = with_archives(file.read_bytes(), file)
    except FileNotFoundError:
        raise FixArgumentsError(f"there is no ledger at {file}: check the path.") from None
    contents = read_contents(data, file, trusted=0)
    lines, rest = split_lines(data)
    if rest and is_complete(rest):
        lines.append(rest + b"\n")
    return LedgerFile(file, lines, contents)


def _of_lines(path: Path, lines: list[bytes]) -> LedgerFile:
    return LedgerFile(path, lines, read_contents(b"".join(lines), path, trusted=0))
