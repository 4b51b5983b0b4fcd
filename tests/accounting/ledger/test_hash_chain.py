"""The hash chain: any change to written lines is detected."""

import json

import pytest

from bevel.accounting.ledger.hash_chain import START, canonical, line_of, verified_links
from bevel.errors import RestoreLedgerError


def chain(count):
    lines, previous = [], START
    for number in range(count):
        text, previous = line_of({"kind": "test", "value": number / 3}, number, previous)
        lines.append(text)
    return lines


def read(lines):
    return [link.entry for link in verified_links(lines, "the file")]


def test_lines_round_trip():
    lines = chain(4)
    assert [entry["value"] for entry in read(lines)] == [k / 3 for k in range(4)]
    assert all(json.loads(line) for line in lines)
    assert [link.hash for link in verified_links(lines, "")][-1] == json.loads(lines[-1])["hash"]


def test_every_changed_byte_is_detected():
    lines = chain(3)
    for which, line in enumerate(lines):
        for at in range(len(line)):
            for new in {line[at] ^ 1, ord(" "), ord("0")} - {line[at]}:
                changed = line[:at] + bytes([new]) + line[at + 1 :]
                with pytest.raises(RestoreLedgerError, match=f"the file, line {which + 1}"):
                    read([*lines[:which], changed, *lines[which + 1 :]])


def test_moved_removed_or_added_lines_are_detected():
    a, b, c, d = chain(4)
    for lines in [[b, a, c, d], [a, c, b, d], [a, c, d], [b, c, d], [a, b, b, c], [a, d]]:
        with pytest.raises(RestoreLedgerError, match="lines were removed, added or moved"):
            read(lines)


def test_lines_not_in_canonical_form_are_detected():
    lines = chain(1)
    spaced = json.dumps(json.loads(lines[0])).encode() + b"\n"
    with pytest.raises(RestoreLedgerError, match="was changed after it was written"):
        read([spaced])


@pytest.mark.parametrize(
    "text", [b"\n", b"[]\n", b"3\n", b"{}\n", b"\xff\n", b"not json\n", b"[" * 99_999 + b"\n"]
)
def test_lines_that_are_not_of_a_ledger_are_refused(text):
    with pytest.raises(RestoreLedgerError, match="is not a ledger, or is damaged"):
        read([text + b"\n"])


def test_an_entry_is_an_object():
    for entry in ([], 3, None, "charge"):
        with pytest.raises(RestoreLedgerError, match="its entry is not an object"):
            read([line_of(entry, 0, START)[0]])


def test_nan_is_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical(float("nan"))
