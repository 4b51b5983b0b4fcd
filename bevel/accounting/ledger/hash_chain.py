"""Lines of JSON, each holding the hash of the one before: what is written cannot change unseen.

A line is `{"entry": ..., "hash": ..., "line": ..., "previous": ...}`, in the one spelling that
`line_of` gives it, so a changed byte anywhere shows. The chain finds accidents and careless
edits. Someone who may write the file can write a whole new chain, or cut off its end: the hash of
the last line, kept in another place, finds that.
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
    """The one spelling of a JSON value: keys in order, no spaces, ASCII. No NaN, no infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def line_of(entry: dict[str, Any], line: int, previous: str) -> tuple[bytes, str]:
    """The bytes of a line, its end included, and its hash."""
    record = {"entry": entry, "line": line, "previous": previous}
    digest = hashlib.sha256(canonical(record)).hexdigest()
    return canonical(record | {"hash": digest}) + b"\n", digest


def links(lines: Iterable[bytes], where: str) -> Iterator[_Link]:
    """Whole lines, checked one by one. Raises at the first that is not what was written.

    `where` names the file, for messages.
    """
    previous = START
    for number, text in enumerate(lines):
        try:
            record = json.loads(text)
            entry, written = record["entry"], record["previous"]
            if not isinstance(entry, dict):
                raise TypeError("its entry is not an object")
            expected, digest = line_of(entry, number, previous)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RestoreLedgerError(
                f"{where}, line {number + 1} is not a line of a ledger ({error}): the file is "
                "damaged. Restore it from a copy; without it, what was spent is not known."
            ) from error
        if text != expected:
            if written != previous or record.get("line") != number:
                what = "does not follow the line before it: lines were removed, added or moved"
            else:
                what = "was changed after it was written"
            raise RestoreLedgerError(
                f"{where}, line {number + 1} {what}. Restore the file from a copy; without it, "
                "what was spent is not known."
            )
        yield _Link(number, digest, entry)
        previous = digest
