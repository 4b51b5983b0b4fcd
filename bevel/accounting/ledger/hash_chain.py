"""A hash chain of JSON lines: each line contains the hash of the one before it.

A line is `{"entry": ..., "hash": ..., "line": ..., "previous": ...}` in the canonical form that
`line_of` writes, so any changed byte is detected. The chain detects accidents and careless edits.
Someone who can write the file can also write a whole new chain, or remove its last lines. To detect
that, keep the hash of the last line in another place.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bevel.errors import RestoreLedgerError

START = "0" * 64


class _Link(NamedTuple):
    """One line, read and checked."""

    line: int  # from 0
    hash: str
    entry: dict[str, Any]


def canonical(value: Any) -> bytes:
    """Returns a JSON value in canonical form: sorted keys, no spaces, ASCII, finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def line_of(entry: dict[str, Any], line: int, previous: str) -> tuple[bytes, str]:
    """Returns the bytes of a line, including its line feed, and its hash."""
    record = {"entry": entry, "line": line, "previous": previous}
    digest = hashlib.sha256(canonical(record)).hexdigest()
    return canonical(record | {"hash": digest}) + b"\n", digest


def verified_links(lines: Iterable[bytes], where: str) -> Iterator[_Link]:
    """Yields complete lines, checked one by one. Raises at the first line that was changed.

    `where` names the file in error messages.
    """
    previous = START
    for number, text in enumerate(lines):
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
        yield _Link(number, digest, entry)
        previous = digest
