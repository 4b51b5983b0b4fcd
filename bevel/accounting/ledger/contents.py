"""Reads and checks the whole file of a ledger."""

from pathlib import Path
from typing import NamedTuple

from bevel.accounting.ledger.entries import entry_from_json
from bevel.accounting.ledger.hash_chain import verified_links
from bevel.accounting.ledger.header import LedgerHeader
from bevel.accounting.ledger.torn_line import could_be_torn, is_complete, split_lines
from bevel.accounting.ledger.totals import LedgerTotals
from bevel.errors import FixArgumentsError, RestoreLedgerError


class Contents(NamedTuple):
    """What the complete lines say, and whether the last line was cut short."""

    header: LedgerHeader
    totals: LedgerTotals
    hashes: list[str]
    torn: bytes = b""  # the first bytes of an incomplete last line, which is not counted
    lacks_newline: bool = False  # the last line lacks only its line feed, and is counted


def read_contents(data: bytes, path: Path) -> Contents:
    """Reads a ledger. Raises if it is damaged in any other way than a last line cut short.

    A charge whose line was cut short never returned, so nothing was released for it and it is not
    counted. A last line that lacks only its line feed is counted, because an editor may have
    removed the line feed later.
    """
    where = str(path)
    lines, rest = split_lines(data)
    if not lines:
        problem = f"{len(data)} bytes without a line feed" if data else "it is empty"
        raise RestoreLedgerError(
            f"{where} is not a ledger, or is damaged ({problem}). It was not changed. Restore it "
            "from a copy. To create a ledger, pass a path where there is no file."
        )
    lacks_newline = bool(rest) and is_complete(rest)
    if lacks_newline:
        lines, rest = [*lines, rest + b"\n"], b""
    chain = verified_links(lines, where)
    first = next(chain)
    header, totals = LedgerHeader.from_entry(first.entry, where), LedgerTotals()
    hashes = [first.hash]
    for link in chain:
        location = f"{where}, line {link.line + 1}"
        try:
            totals.add(entry_from_json(link.entry, header.version, f"{location},"))
        except FixArgumentsError as error:
            raise RestoreLedgerError(
                f"{location} cannot follow the lines before it: {error}"
            ) from error
        hashes.append(link.hash)
    if rest and not could_be_torn(rest):
        raise RestoreLedgerError(
            f"{where} has {len(rest)} bytes after its {len(lines)} complete lines that are not the "
            "beginning of a line. The file is damaged and was not changed. Restore it from a copy; "
            "without it, what was spent is unknown."
        )
    return Contents(header, totals, hashes, rest, lacks_newline)
