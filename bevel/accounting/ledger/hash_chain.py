"""A hash chain of JSON lines: each line contains the hash of the one before it.

A line is `{"entry": ..., "hash": ..., "line": ..., "previous": ...}` in the canonical form that
`line_of` writes, so any changed byte is detected. The chain detects accidents and careless edits.
Someone who can write the file can also write a whole new chain, or remove its last lines. To detect
that, keep the hash of the last line in another place.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bevel.errors import RestoreLedgerError

START = "0" * 64
DIGEST = 32  # bytes of a hash


class Link(NamedTuple):
    """One line, read and checked."""

    line: int  # from 0
    hash: str
    entry: dict[str, Any]


class LineHashes:
    """The hashes of a ledger's lines, 32 bytes each. Lines in archives are counted, not known."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self.archived = 0  # lines after the first one that are in archives

    def append(self, digest: str) -> None:
        self._digests += bytes.fromhex(digest)

    def extend(self, digests: Sequence[bytes]) -> None:
        self._digests += bytes.fromhex(b"".join(digests).decode())

    def skip(self, lines: int) -> None:
        """Counts lines that are in archives. Only after the first line."""
        self.archived += lines

    def __len__(self) -> int:
        return len(self._digests) // DIGEST + self.archived

    def __getitem__(self, line: int) -> str:
        """The hash of a line, from 0 on. Empty for a line in an archive."""
        if 0 < line <= self.archived:
            return ""
        known = line - self.archived if line else 0
        return self._digests[DIGEST * known : DIGEST * (known + 1)].hex()

    def compacted(self) -> "LineHashes":
        """The hashes of the first and the last line. Those in between are in an archive."""
        made = LineHashes()
        made._digests = self._digests[:DIGEST] + self._digests[-DIGEST:]
        made.archived = len(self) - 2
        return made

    @property
    def head(self) -> str:
        return self._digests[-DIGEST:].hex()

    def line_of(self, digest: str) -> int | None:
        """The number of the line with this hash. None if it is unknown."""
        try:
            wanted, at = bytes.fromhex(digest), -1
        except ValueError:
            return None
        if len(wanted) != DIGEST or wanted.hex() != digest:
            return None
        while (at := self._digests.find(wanted, at + 1)) >= 0:
            if at % DIGEST == 0:
                return at // DIGEST + (self.archived if at else 0)
        return None


def canonical(value: Any) -> bytes:
    """Returns a JSON value in canonical form: sorted keys, no spaces, ASCII, finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def line_of(entry: dict[str, Any], line: int, previous: str) -> tuple[bytes, str]:
    """Returns the bytes of a line, including its line feed, and its hash."""
    record = {"entry": entry, "line": line, "previous": previous}
    digest = hashlib.sha256(canonical(record)).hexdigest()
    return canonical(record | {"hash": digest}) + b"\n", digest


def verified_links(
    lines: Iterable[bytes], where: str, first: int = 0, previous: str = START
) -> Iterator[Link]:
    """Yields complete lines, checked one by one. Raises at the first line that was changed.

    `where` names the file in error messages. The lines are those from number `first` on, after a
    line with the hash `previous`.
    """
    for number, text in enumerate(lines, first):
        try:
            record = json.loads(text)
            entry, recorded_previous = record["entry"], record["previous"]
            if not isinstance(entry, dict):
                raise TypeError("its entry is not an object")
            expected, digest = line_of(entry, number, previous)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RestoreLedgerError(
                f"{where}, line {number + 1} ({error}): the file is not a ledger, or is damaged. "
                "Restore it from a copy; without it, what was spent is unknown."
            ) from error
        if text != expected:
            if recorded_previous != previous or record.get("line") != number:
                problem = "does not follow the line before it: lines were removed, added or moved"
            else:
                problem = "was changed after it was written"
            raise RestoreLedgerError(
                f"{where}, line {number + 1} {problem}. Restore the file from a copy; without it, "
                "what was spent is unknown."
            )
        yield Link(number, digest, entry)
        previous = digest
