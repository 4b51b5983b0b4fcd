"""All that a file says: the same before and after each line, and nothing from damage."""

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


def test_what_was_written_is_read():
    found = read_contents(b"".join(lines_of(ENTRIES)), PATH)
    assert found.terms == ENTRIES[0] and len(found.hashes) == 4
    run = found.books.runs["run"]
    assert (run.reached, run.released, run.begun) == (5, 5, 0)
    assert sum(found.books.events().values()) == 2
    assert (found.torn, found.lacks_end) == (b"", False)


def test_a_file_cut_off_at_any_byte_says_what_its_whole_lines_say():
    whole = b"".join(lines_of(ENTRIES))
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        if size < ends[0]:
            with pytest.raises(RestoreLedgerError, match="give a path where there is no file"):
                read_contents(whole[:size], PATH)
            continue
        found = read_contents(whole[:size], PATH)
        lacks_end = size + 1 in ends
        lines = sum(end <= size for end in ends)
        assert found.lacks_end == lacks_end
        assert len(found.hashes) == lines + lacks_end
        assert len(found.torn) == (0 if lacks_end else size - ends[lines - 1])


def test_an_entry_that_cannot_follow_refuses_with_or_without_its_end():
    ahead = [*ENTRIES[:2], Release(**RUN, stop=5)]
    whole = b"".join(lines_of(ahead))
    for data in (whole, whole[:-1]):
        with pytest.raises(RestoreLedgerError, match="the file, line 3 cannot follow"):
            read_contents(data, PATH)


def test_terms_come_first():
    for entries in (ENTRIES[1:], [ENTRIES[0], ENTRIES[0]]):
        with pytest.raises(RestoreLedgerError, match=r"does not (begin as|know it)"):
            read_contents(b"".join(lines_of(entries)), PATH)
