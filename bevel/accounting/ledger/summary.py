"""Summaries: lines of a ledger that state what all lines before them add up to.

A ledger of a million charges takes a minute to add up. So now and then a line of the chain holds
the totals so far, and the SHA-256 of the bytes before it, back to and including the summary before.
Reading hashes these bytes in one go, takes the totals of the last summary, and adds the lines after
it. A changed byte is still noticed anywhere. To trust no summary, read the ledger in full: every
line is then added up, and each summary is compared with the sum.

The file stays linear in the number of charges, because a summary is preceded by several times its
own size of other lines. A summary also lets a ledger be compacted: the lines before it move to an
archive (archive.py).
"""

import dataclasses
import hashlib
import json
import re
from typing import Any, NamedTuple

from bevel.accounting.ledger.hash_chain import LineHashes, line_of
from bevel.accounting.ledger.totals import LedgerTotals

SMALLEST_GAP = 1 << 20  # bytes between two summaries
GAP = 4  # bytes between two summaries, in units of the size of the first one
FIELDS = {"kind", "header", "prefix", "totals"}
_START = re.compile(
    rb'{"entry":{"header":"[0-9a-f]{64}","kind":"summary","prefix":"([0-9a-f]{64})"'
)
_END = re.compile(rb'"line":([0-9]{1,18}),"previous":"[0-9a-f]{64}"}$')
_HASHES = re.compile(rb'"hash":"([0-9a-f]{64})","line":[0-9]+,"previous":"[0-9a-f]{64}"}$', re.M)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the lines before this one add up to.

    Attributes:
      header: the hash of the ledger's first line, which a compacted ledger keeps.
      prefix: the SHA-256 of the bytes from the previous summary, or from the beginning, up to here.
      totals: `LedgerTotals.to_json()`.
    """

    header: str
    prefix: str
    totals: dict[str, Any]

    def entry(self) -> dict[str, Any]:
        return {"kind": "summary"} | dataclasses.asdict(self)


def is_summary(entry: dict[str, Any]) -> bool:
    return entry.get("kind") == "summary" and set(entry) == FIELDS


class Segment:
    """The bytes since the last summary, with it: their SHA-256, and whether a summary is due."""

    def __init__(self) -> None:
        self._hash, self._size, self._gap = hashlib.sha256(), 0, SMALLEST_GAP

    def add(self, text: bytes, *, starts: bool = False) -> None:
        """Adds lines. `starts` is for the line of a summary, which starts a new segment."""
        if starts:
            self._hash, self._size = hashlib.sha256(), -len(text)
            self._gap = max(SMALLEST_GAP, GAP * len(text))
        self._hash.update(text)
        self._size += len(text)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    @property
    def summary_is_due(self) -> bool:
        return self._size >= self._gap


class UpToSummary(NamedTuple):
    """The lines of a ledger up to its last summary, included."""

    end: int  # the number of their bytes
    totals: LedgerTotals
    hashes: LineHashes
    segment: Segment
    believed: int = 0  # the number of the summary whose totals these are


def up_to_last_summary(
    data: bytes, header: str, header_size: int, trusted: int | None = None
) -> UpToSummary | None:
    """What the last summary says. None if there is none, or if it does not fit the bytes before.

    In the second case the caller reads all lines one by one, and finds what is wrong.

    Args:
      header: the hash of the first line, which has `header_size` bytes.
      trusted: only a summary among this many lines is believed. None believes every summary.
    """
    found = _summaries(data, header_size)
    if found and data.find(b"\n", found[-1].start()) < 0:
        found.pop()  # it was cut short
    while found and trusted is not None and _line_number(data, found[-1].start()) >= trusted:
        found.pop()
    if not found:
        return None
    start = found[-1].start()
    end = data.index(b"\n", start) + 1
    try:
        record = json.loads(data[start:end])
        entry, line = record["entry"], int(record["line"])
        if not is_summary(entry) or entry["header"] != header:
            return None
        text, digest = line_of(entry, line, record["previous"])
        totals = LedgerTotals.from_json(entry["totals"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    hashes = LineHashes()
    hashes.append(header)
    hashes.extend(_HASHES.findall(data, header_size, end - 1))
    archived = archived_before(data[header_size : data.find(b"\n", header_size) + 1], 1)
    if archived is not None:
        hashes.skip(archived[0] - 1)
    fits = (
        text == data[start:end]
        and digest == hashes.head
        and len(hashes) == line + 1
        and record["previous"] == (hashes[line - 1] or record["previous"])
        and _segments_fit(memoryview(data), found, archived is not None)
    )
    if not fits:
        return None
    segment = Segment()
    segment.add(text, starts=True)
    return UpToSummary(end, totals, hashes, segment, line)


def archived_before(text: bytes, number: int) -> tuple[int, str] | None:
    """The number of a summary and the hash before it, if lines between it and `number` are missing.

    `text` is the line after the header. In a compacted ledger it is a summary, and the lines that
    it sums up are in an archive.
    """
    if number != 1 or not _START.match(text):
        return None
    try:
        record = json.loads(text)
        line, previous = record["line"], record["previous"]
        missing = is_summary(record["entry"]) and type(line) is int and line > number
        return (line, str(previous)) if missing else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _summaries(data: bytes, start: int) -> list[re.Match[bytes]]:
    """The beginnings of all summaries after the header, which ends at `start`."""
    found, at = [], start - 1
    while (at := data.find(b'\n{"entry":{"header":"', at)) >= 0:
        at += 1
        match = _START.match(data, at)
        if match is not None:
            found.append(match)
    return found


def _line_number(data: bytes, start: int) -> int:
    """The number that the line at `start` states. If that is wrong, the line does not fit."""
    match = _END.search(data[start : data.index(b"\n", start)][-120:])
    return int(match[1]) if match else 0


def _segments_fit(data: memoryview, found: list[re.Match[bytes]], archived: bool) -> bool:
    """Whether the bytes between summaries have the digests that the summaries state."""
    start = 0
    for number, match in enumerate(found):
        digest = hashlib.sha256(data[start : match.start()]).hexdigest()
        if digest != match[1].decode() and not (archived and number == 0):
            return False
        start = match.start()
    return True
