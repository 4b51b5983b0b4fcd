"""Archives: the lines that a compacted ledger no longer holds.

An archive holds the lines of a ledger up to a summary, byte for byte, and is named after the number
of the first line that it does not hold: `ledger.jsonl.archive-70000`. The archives of a ledger and
the ledger itself, put together, are the ledger as if it had never been compacted.
"""

import glob
import json
import re
from pathlib import Path

from bevel.accounting.ledger.durable_files import replace_file
from bevel.accounting.ledger.summary import archived_before
from bevel.errors import RestoreLedgerError

NAME = ".archive-"
NUMBER = re.compile("[0-9]{1,18}")


def new_archive(ledger: Path, lines: int) -> Path:
    """The path of an archive of the lines before number `lines`. Raises if the file exists.

    No ledger gets two archives of the same number, unless it was set back to an old copy, or
    created again after it was lost. The old archive is then all that is left of some charges.
    """
    target = ledger.resolve()
    archive = target.with_name(f"{target.name}{NAME}{lines}")
    if archive.exists():
        raise RestoreLedgerError(
            f"{archive} exists already, so {ledger} was set back or created again, and the archive "
            "has charges that it lacks. Restore the ledger that belongs to the archive."
        )
    return archive


def check_no_archives(ledger: Path) -> None:
    """Raises if there are archives but no ledger: a new ledger would forget all charges."""
    target = ledger.resolve()
    if not target.exists() and any(target.parent.glob(f"{glob.escape(target.name)}{NAME}*")):
        raise RestoreLedgerError(
            f"there is no ledger at {ledger}, but there are archives of one: it was moved or "
            "removed. Restore it from a copy. For a new ledger, pass another path."
        )


def archived_lines(ledger: Path) -> int:
    """The number of lines that the archives beside a ledger hold, or 0 if there are none.

    An archive is written once the summary of its lines is in the ledger. So the ledger has more
    lines than this, unless it was set back. Look for archives before you read the ledger: another
    process may compact it in between.
    """
    target = ledger.resolve()
    found = target.parent.glob(f"{glob.escape(target.name)}{NAME}*")
    numbers = (archive.name.removeprefix(f"{target.name}{NAME}") for archive in found)
    return max((int(number) for number in numbers if NUMBER.fullmatch(number)), default=0)


def check_not_set_back(ledger: Path, lines: int, archived: int) -> None:
    """Raises if a ledger of so many lines lacks lines that its archives hold."""
    if lines <= archived:
        raise RestoreLedgerError(
            f"{ledger} has {lines} lines, but {ledger.name}{NAME}{archived} beside it holds "
            f"{archived} lines of it: the ledger was set back to an old copy, so what was spent "
            "since is unknown. Restore the ledger that belongs to the archive."
        )


def write_archive(archive: Path, data: bytes, mode: int) -> None:
    """Writes an archive of the lines in `data`, the bytes of a ledger.

    If the ledger is already compacted, the archive begins with its first summary.
    """
    header_size = data.index(b"\n") + 1
    first = data[header_size : data.find(b"\n", header_size) + 1]
    if archived_before(first, 1) is not None:
        data = data[header_size:]
    replace_file(archive, data, mode)


def with_archives(data: bytes, ledger: Path, trusted: int = 0) -> bytes:
    """The bytes of a ledger with those of its archives. Raises if an archive is missing.

    With `trusted`, only archives are added without which the ledger would begin with a summary
    that is not among this many lines.
    """
    header_size = data.find(b"\n") + 1
    first = data[header_size : data.find(b"\n", header_size) + 1]
    compacted = archived_before(first, 1)
    if compacted is None:
        return data
    until, parts = compacted[0], [data[header_size:]]
    while until >= max(1, trusted):
        archive = ledger.resolve().with_name(f"{ledger.resolve().name}{NAME}{until}")
        try:
            part = archive.read_bytes()
        except FileNotFoundError:
            raise RestoreLedgerError(
                f"{ledger} was compacted, and its lines before {until + 1} are in {archive}, which "
                "does not exist. Restore it from a copy. Without it, only the summary is known."
            ) from None
        parts.append(part)
        until = _first_line(part, archive, until)
    if until:
        parts.append(data[:header_size])
    return b"".join(reversed(parts))


def _first_line(part: bytes, archive: Path, until: int) -> int:
    """The number of the first line of an archive, which ends before line `until`."""
    try:
        number = json.loads(part[: part.index(b"\n")])["line"]
        if type(number) is not int or not 0 <= number < until:
            raise ValueError(f"its first line has the number {number}")
        return number
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RestoreLedgerError(
            f"{archive} does not begin with a line of a ledger: restore it from a copy."
        ) from None
