"""All that a ledger's file says, checked."""

from pathlib import Path
from typing import NamedTuple

from bevel.accounting.ledger.entries import entry_of_json
from bevel.accounting.ledger.hash_chain import links
from bevel.accounting.ledger.header import LedgerHeader
from bevel.accounting.ledger.torn_line import could_be_torn, is_whole, split_torn
from bevel.accounting.ledger.totals import LedgerTotals
from bevel.errors import FixArgumentsError, RestoreLedgerError


class Contents(NamedTuple):
    """What the whole lines say; what is wrong with the last one, if it was cut short."""

    terms: LedgerHeader
    books: LedgerTotals
    hashes: list[str]
    torn: bytes = b""  # the first bytes of a line, which counts for nothing
    lacks_end: bool = False  # only the last line's end is missing: it counts


def read_contents(data: bytes, path: Path) -> Contents:
    """Everything that a ledger says. Raises unless it is whole, but for a last line cut short.

    A line that was cut short was not acknowledged, so nothing was released on account of it. One of
    which all is there but the end counts nevertheless: an editor may have taken the end away.
    """
    where = str(path)
    lines, rest = split_torn(data)
    if not lines:
        what = f"{len(data)} bytes without the end of a line" if data else "it is empty"
        raise RestoreLedgerError(
            f"{where} is not a ledger, or is damaged ({what}), and is left as it is. Restore it "
            "from a copy. To begin a ledger, give a path where there is no file."
        )
    lacks_end = bool(rest) and is_whole(rest)
    if lacks_end:
        lines, rest = [*lines, rest + b"\n"], b""
    chain = links(lines, where)
    begin = next(chain)
    terms, books, hashes = LedgerHeader.of_entry(begin.entry, where), LedgerTotals(), [begin.hash]
    for link in chain:
        place = f"{where}, line {link.line + 1}"
        try:
            books.add(entry_of_json(link.entry, terms.version, f"{place},"))
        except FixArgumentsError as error:
            raise RestoreLedgerError(
                f"{place} cannot follow the lines before it: {error}"
            ) from error
        hashes.append(link.hash)
    if rest and not could_be_torn(rest):
        raise RestoreLedgerError(
            f"{where} ends, after {len(lines)} whole lines, in {len(rest)} bytes that are not the "
            "beginning of a line: the file is damaged, and is left as it is. Restore it from a "
            "copy; without it, what was spent is not known."
        )
    return Contents(terms, books, hashes, rest, lacks_end)
