"""Reading a file: complete lines count, a torn one does not, and damage is refused."""

from pathlib import Path

import pytest

from bevel.accounting.ledger.contents import read_contents
from bevel.accounting.ledger.entries import Charge, Release
from bevel.accounting.ledger.hash_chain import START, line_of
from bevel.accounting.ledger.header import LedgerHeader
from bevel.errors import RestoreLedgerError

PATH = Path("the file")
EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}
RUN = {"run": "run", "plan": "plan", "key": "a" * 64, "attempt": 0}
ENTRIES = [
    LedgerHeader("example", "REPLACE_ONE"),
    Charge(**RUN, first=0, stop=4, event=EVENT, released=1),
    Release(**RUN, stop=3),
    Charge(**RUN, first=4, stop=5, event=EVENT),
]


def lines_of(entries):
    lines, previous = [], START
    for number, entry in enumerate(entries):
        text, previous = line_of(entry.entry(), number, previous)
        lines.append(text)
    return lines


def test_lines_round_trip():
    found = read_contents(b"".join(lines_of(ENTRIES)), PATH)
    assert found.header == ENTRIES[0] and len(found.hashes) == 4
    run = found.totals.runs["run"]
    assert (run.charged_until, run.released_until, run.attempt_first) == (5, 5, 0)
    assert sum(found.totals.events().values()) == 2
    assert (found.torn, found.lacks_newline) == (b"", False)


def test_a_file_cut_off_at_any_byte_has_the_entries_of_its_complete_lines():
    whole = b"".join(lines_of(ENTRIES))
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        if size < ends[0]:
            with pytest.raises(RestoreLedgerError, match="pass a path where there is no file"):
                read_contents(whole[:size], PATH)
            continue
        found = read_contents(whole[:size], PATH)
        lacks_newline = size + 1 in ends
        lines = sum(end <= size for end in ends)
        assert found.lacks_newline == lacks_newline
        assert len(found.hashes) == lines + lacks_newline
        assert len(found.torn) == (0 if lacks_newline else size - ends[lines - 1])


def test_an_invalid_entry_is_refused_with_or_without_its_line_feed():
    ahead = [*ENTRIES[:2], Release(**RUN, stop=5)]
    whole = b"".join(lines_of(ahead))
    for data in (whole, whole[:-1]):
        with pytest.raises(RestoreLedgerError, match="the file, line 3 cannot follow"):
            read_contents(data, PATH)


def test_the_header_comes_first():
    for entries in (ENTRIES[1:], [ENTRIES[0], ENTRIES[0]]):
        with pytest.raises(RestoreLedgerError, match=r"does not begin with the header|cannot read"):
            read_contents(b"".join(lines_of(entries)), PATH)
