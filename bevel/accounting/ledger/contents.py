"""Reads and checks the file of a ledger."""

from pathlib import Path
from typing import Any, NamedTuple

from bevel.accounting.ledger.entries import entry_from_json
from bevel.accounting.ledger.hash_chain import LineHashes, Link, canonical, verified_links
from bevel.accounting.ledger.header import LedgerHeader
from bevel.accounting.ledger.summary import (
    Segment,
    UpToSummary,
    archived_before,
    is_summary,
    up_to_last_summary,
)
from bevel.accounting.ledger.torn_line import could_be_torn, is_complete, split_lines
from bevel.accounting.ledger.totals import LedgerTotals
from bevel.errors import FixArgumentsError, RestoreLedgerError


class Contents(NamedTuple):
    """What the complete lines say, and whether the last line was cut short."""

    header: LedgerHeader
    totals: LedgerTotals
    hashes: LineHashes
    segment: Segment
    torn: bytes = b""  # the first bytes of an incomplete last line, which is not counted
    lacks_newline: bool = False  # the last line lacks only its line feed, and is counted
    believed: int = 0  # the number of the summary that was believed


def read_contents(data: bytes, path: Path, *, trusted: int | None = None) -> Contents:
    """Reads a ledger. Raises if it is damaged in any other way than a last line cut short.

    A charge whose line was cut short never returned, so nothing was released for it and it is not
    counted. A last line that lacks only its line feed is counted, because an editor may have
    removed the line feed later.

    Lines before the last summary are hashed, and not added up again.

    Args:
      trusted: only summaries among this many lines are believed, and later ones are compared with
        the sum of the lines before them. None believes every summary.
    """
    where = str(path)
    header_size = data.find(b"\n") + 1
    if not header_size:
        problem = f"{len(data)} bytes without a line feed" if data else "it is empty"
        raise RestoreLedgerError(
            f"{where} is not a ledger, or is damaged ({problem}). It was not changed. Restore it "
            "from a copy. To create a ledger, pass a path where there is no file."
        )
    (first,) = verified_links([data[:header_size]], where)
    header = LedgerHeader.from_entry(first.entry, where)
    known = None
    if trusted != 0 and header.version >= 3:
        known = up_to_last_summary(data, first.hash, header_size, trusted)
    if known is None:
        known = _only_header(data[:header_size], first)
    lines, rest = split_lines(data[known.end :])
    lacks_newline = bool(rest) and is_complete(rest)
    if lacks_newline:
        lines, rest = [*lines, rest + b"\n"], b""
    totals, believed = _add_lines(lines, known, header, where, trusted)
    if rest and not could_be_torn(rest):
        raise RestoreLedgerError(
            f"{where} has {len(rest)} bytes after its {len(known.hashes)} complete lines that are "
            "not the beginning of a line. The file is damaged and was not changed. Restore it from "
            "a copy; without it, what was spent is unknown."
        )
    return Contents(header, totals, known.hashes, known.segment, rest, lacks_newline, believed)


def _only_header(text: bytes, header: Link) -> UpToSummary:
    hashes, segment = LineHashes(), Segment()
    hashes.append(header.hash)
    segment.add(text)
    return UpToSummary(len(text), LedgerTotals(), hashes, segment)


def _add_lines(
    lines: list[bytes], known: UpToSummary, header: LedgerHeader, where: str, trusted: int | None
) -> tuple[LedgerTotals, int]:
    """Adds lines to what is known of those before them.

    Returns the totals, and the number of the summary that was believed.
    """
    totals, hashes, segment = known.totals, known.hashes, known.segment
    archived = archived_before(lines[0], len(hashes)) if lines else None
    if archived is not None and trusted is not None and archived[0] >= trusted:
        raise RestoreLedgerError(
            f"{where} lacks the lines between its first line and the summary in line "
            f"{archived[0] + 1}, and so do its archives: someone removed them. Restore the file "
            "from a copy; without it, what was spent is unknown."
        )
    number, previous = archived or (len(hashes), hashes.head)
    hashes.skip(number - len(hashes))
    for text, link in zip(lines, verified_links(lines, where, number, previous), strict=True):
        location = f"{where}, line {link.line + 1}"
        if is_summary(link.entry) and header.version >= 3:
            is_base = archived is not None and link.line == number
            totals = _totals_of_summary(link.entry, None if is_base else totals, known, location)
        else:
            try:
                totals.add(entry_from_json(link.entry, header.version, f"{location},"))
            except FixArgumentsError as error:
                raise RestoreLedgerError(
                    f"{location} cannot follow the lines before it: {error}"
                ) from error
        segment.add(text, starts=is_summary(link.entry))
        hashes.append(link.hash)
    return totals, number if archived is not None else known.believed


def _totals_of_summary(
    entry: dict[str, Any], totals: LedgerTotals | None, known: UpToSummary, where: str
) -> LedgerTotals:
    """The totals at a summary. Raises unless they are the sum of the lines before.

    `totals` is that sum, or None if the lines before are in archives.
    """
    try:
        stated = LedgerTotals.from_json(entry["totals"])
        fits = entry["header"] == known.hashes[0]
        if totals is not None:
            same = canonical(entry["totals"]) == canonical(totals.to_json())
            fits = fits and same and entry["prefix"] == known.segment.digest
    except (ValueError, KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise RestoreLedgerError(
            f"{where} states other totals than the lines before it add up to, or belongs to "
            "another ledger. Restore the file from a copy; without it, what was spent is unknown."
        )
    return stated if totals is None else totals
