"""Archives: the lines that a compacted ledger no longer holds.

An archive holds the lines of a ledger up to a summary, byte for byte, and is named after the number
of the first line that it does not hold: `ledger.jsonl.archive-70000`. The archives of a ledger and
the ledger itself, put together, are the ledger as if it had never been compacted.
"""

import json
from pathlib import Path

from bevel.accounting.ledger.durable_files import replace_file
from bevel.accounting.ledger.summary import archived_before
from bevel.errors import RestoreLedgerError


def write_archive(ledger: Path, data: bytes, lines: int) -> Path:
    """Writes an archive of lines that end before line number `lines`. Returns its path.

    `data` is the ledger. If it is already compacted, the archive begins with its first summary.
    """
    header_size = data.index(b"\n") + 1
    first = data[header_size : data.find(b"\n", header_size) + 1]
    if archived_before(first, 1) is not None:
        data = data[header_size:]
    target = ledger.resolve()
    archive = target.with_name(f"{target.name}.archive-{lines}")
    replace_file(archive, data)
    return archive


def with_archives(data: bytes, ledger: Path) -> bytes:
    """The bytes of a ledger with those of its archives. Raises if an archive is missing."""
    header_size = data.find(b"\n") + 1
    first = data[header_size : data.find(b"\n", header_size) + 1]
    compacted = archived_before(first, 1)
    if compacted is None:
        return data
    until, parts = compacted[0], [data[header_size:]]
    while until:
        archive = ledger.resolve().with_name(f"{ledger.resolve().name}.archive-{until}")
        try:
            part = archive.read_bytes()
        except FileNotFoundError:
            raise RestoreLedgerError(
                f"{ledger} was compacted, and its lines before {until + 1} are in {archive}, which "
                "does not exist. Restore it from a copy. Without it, only the summary is known."
            ) from None
        parts.append(part)
        until = _first_line(part, archive)
    return b"".join(reversed(parts))


def _first_line(part: bytes, archive: Path) -> int:
    """The number of the first line of an archive."""
    try:
        return int(json.loads(part[: part.index(b"\n")])["line"])
    except (ValueError, KeyError, TypeError):
        raise RestoreLedgerError(
            f"{archive} does not begin with a line of a ledger: restore it from a copy."
        ) from None
