"""A line that was cut short is distinguished from damage."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_events import bins, event

from bevel.accounting.ledger.entries import Charge, Release
from bevel.accounting.ledger.hash_chain import START, line_of
from bevel.accounting.ledger.torn_line import could_be_torn, is_complete, save_torn, split_lines

RUN = {"plan": "plan", "key": "a" * 64, "attempt": 0}


def lines_of(name="run", event=None):
    """The lines of a charge and a release."""
    event = event or {"kind": "GaussianDpEvent", "noise_multiplier": 1e-7}
    charge = Charge(name, **RUN, first=0, stop=12, event=event)
    for entry in (charge, Release(name, **RUN, stop=3)):
        yield line_of(entry.entry(), 31, START)[0]


def test_split_lines():
    assert split_lines(b"one\ntwo\n") == ([b"one\n", b"two\n"], b"")
    assert split_lines(b"one\r\ntw") == ([b"one\r\n"], b"tw")
    assert split_lines(b"abc") == ([], b"abc")
    assert split_lines(b"") == ([], b"")


ODD_NAMES = ["run", 'with "quotes" and \\', "ü\n\u2028", "{[}]", "\ud800", "true", "\\u12"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_line_may_be_torn_anywhere(name):
    matrix = bins(-0.0, 2, strategy=[[1e-300, 0.0], [-1.5, 2e22]])
    for line in [*lines_of(name), *lines_of(name, matrix)]:
        for end in range(1, len(line) - 1):
            assert could_be_torn(line[:end]), line[:end]
            assert not is_complete(line[:end])
        assert is_complete(line[:-1])


@given(event, st.text(min_size=1), st.data())
def test_lines_of_any_event_may_be_torn_anywhere(event, name, data):
    for line in lines_of(name, event):
        assert could_be_torn(line[: data.draw(st.integers(1, len(line) - 2))])


def test_more_than_the_beginning_of_one_line_is_damage():
    first, second = (line[:-1] for line in lines_of())
    for rest in [
        first + second,
        first + first[:30],
        first + b" ",
        first[:30] + second,
        first[:100] + second[:100],
        first[:100] + b"\r" + first[100:],
        first.replace(b",", b", ")[:200],
        first[:60] + bytes(9),
        bytes(9) + first[:60],
        bytes(9),
        first[1:60],
        b" " + first[:60],
        b"[" + first[:60],
        first[:60] + b"\xff",
        first[:60] + "ü".encode(),
        b'{"entry":{"budget":null',
        b'{"entry":{"attempt":}',
        b'{"entry":{"attempt":0,]',
        b'{"entry":{"attempt":0},"extra":1',
        b'{"entry":{"attempt":0},"line":1',
        b'{"entry":{"attempt":0},"hash":"0","line":1,"previous":"0","more":1',
        b"\x00",
        b"x",
    ]:
        assert not could_be_torn(rest), rest


def test_deep_nesting_is_damage():
    deep = b'{"entry":{"attempt":' + b"[" * 200_000
    assert not could_be_torn(deep) and not is_complete(deep)
    assert not is_complete(json.dumps([1]).encode())


def test_bytes_are_saved_under_an_unused_name(tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(b"")
    path.chmod(0o640)
    (tmp_path / "ledger.torn-2").write_bytes(b"before")
    kept = [save_torn(b"%d" % number, path) for number in range(3)]
    assert [each.name for each in kept] == ["ledger.torn-1", "ledger.torn-3", "ledger.torn-4"]
    assert [each.read_bytes() for each in kept] == [b"0", b"1", b"2"]
    assert (tmp_path / "ledger.torn-2").read_bytes() == b"before"
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in kept)


def test_saved_bytes_are_not_more_readable_than_the_ledger(tmp_path):
    path = tmp_path / "ledger"
    path.write_bytes(b"")
    path.chmod(0o400)
    assert save_torn(b"rest", path).stat().st_mode & 0o777 == 0o400


def test_saved_bytes_are_on_disk(tmp_path, monkeypatch):
    (tmp_path / "ledger").touch()
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda *a: (synced.append(a), sync(*a))[1])
    save_torn(b"rest", tmp_path / "ledger")
    assert len(synced) == 2  # the file, and the folder that has its name
