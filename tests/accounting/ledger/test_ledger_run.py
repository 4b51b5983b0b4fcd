"""Runs in a ledger: charges and releases are recorded and read back."""

import json

import numpy as np
import pytest

from bevel.accounting.ledger import Budget, Ledger, allowance
from bevel.accounting.ledger.hash_chain import START, line_of
from bevel.accounting.ledger.header import LedgerHeader
from bevel.errors import FixArgumentsError, RestoreLedgerError

TERMS = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE"}
EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 10.0}
RUN = {"plan": "plan", "key": "a" * 64}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def last_entry(path):
    return json.loads(path.read_bytes().splitlines()[-1])["entry"]


def released_until(path):
    return Ledger.read(path).run("run", **RUN).released_until


def test_a_charge_says_what_it_releases(path):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        assert run.released_until == 0
        run.charge(0, 4, EVENT, released=np.int64(2))
        assert (run.released_until, run.charged_until) == (2, 4) == (released_until(path), 4)
        assert last_entry(path)["released"] == 2
        run.charge(4, 6, EVENT)
        assert run.released_until == released_until(path) == 6


def test_a_release_is_in_the_file_when_it_returns(path):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 4, EVENT, released=1)
        run.release(np.int64(3))
        assert run.released_until == released_until(path) == 3
        assert last_entry(path) == {
            "kind": "release",
            "run": "run",
            "plan": "plan",
            "key": "a" * 64,
            "attempt": 0,
            "stop": 3,
            "content": "",
        }
        run.release(4, attempt=0)
        run.charge(4, 8, EVENT, released=5)
        assert run.released_until == released_until(path) == 5
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", **RUN).release(8)
    assert released_until(path) == 8


def test_a_repeated_release_is_not_written_again(path):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 4, EVENT, released=3)
        before = path.read_bytes()
        for stop in (0, 1, 3):
            run.release(stop)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "stop, attempt, message",
    [
        (5, None, "charged steps up to 4 of attempt 0. Charge steps before"),
        (1, 1, "steps up to 1 of attempt 1"),
        (-1, None, "stop=-1"),
        (2.5, None, "stop=2.5"),
        (True, None, "stop=True"),
        (2, "0", "attempt='0'"),
    ],
)
def test_steps_that_are_not_charged_are_not_released(path, stop, attempt, message):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 4, EVENT, released=1)
        before = path.read_bytes()
        with pytest.raises(FixArgumentsError, match=message):
            run.release(stop, attempt=attempt)
        with pytest.raises(FixArgumentsError, match="has charged none"):
            ledger.run("other", plan="plan", key="b" * 64).release(1)
        with pytest.raises(FixArgumentsError, match="started with another key"):
            ledger.run("run", plan="plan", key="b" * 64).release(2)
        assert path.read_bytes() == before and run.released_until == 1


def test_a_closed_ledger_accepts_no_release(path):
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", **RUN).charge(0, 4, EVENT, released=1)
    with pytest.raises(FixArgumentsError, match="is not open for writing"):
        ledger.run("run", **RUN).release(2)


def test_each_attempt_has_its_own_releases(path):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 8, EVENT)
        run.charge(2, 6, EVENT, attempt=1, released=3)
        assert run.released_until == released_until(path) == 3
        with pytest.raises(FixArgumentsError, match="charged steps up to 6 of attempt 1"):
            run.release(7)
        with pytest.raises(FixArgumentsError, match="of attempt 0"):
            run.release(5, attempt=0)
        run.release(6)
        assert released_until(path) == 6


def test_releases_never_decrease(path):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 4, EVENT)
        run.charge(0, 8, EVENT, released=1)  # restates the same range
        assert run.released_until == released_until(path) == 4


def test_a_release_is_not_accounted_for(path, monkeypatch):
    with Ledger.open(path, **TERMS, budget=Budget(1, 1e-5)) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 4, EVENT, released=1)
        before = ledger.spent()
        monkeypatch.setattr(allowance, "epsilon_of", None)
        run.release(4)
        monkeypatch.undo()
        assert ledger.spent() == before


def test_a_release_of_uncharged_steps_in_a_file_is_refused(path):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 4, EVENT, released=1)
        run.release(3)
    lines = path.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    for changes in [{"stop": 5}, {"attempt": 1}, {"run": "other"}, {"key": "b" * 64}]:
        text, _ = line_of(last["entry"] | changes, last["line"], last["previous"])
        path.write_bytes(b"".join([*lines[:-1], text]))
        with pytest.raises(RestoreLedgerError, match="line 3 cannot follow"):
            Ledger.read(path)


@pytest.fixture
def old_path(path):
    """A ledger as version 1 wrote it, with two charges."""
    entries = [LedgerHeader("example", "ADD_OR_REMOVE_ONE", version=1).entry()]
    for first, stop in [(0, 2), (2, 4)]:
        charge = {"kind": "charge", "run": "run", "attempt": 0, "event": EVENT, **RUN}
        entries.append(charge | {"first": first, "stop": stop})
    text, previous = b"", START
    for number, entry in enumerate(entries):
        line, previous = line_of(entry, number, previous)
        text += line
    path.write_bytes(text)
    return path


def test_a_ledger_of_version_1_continues_with_what_it_has_spent(old_path):
    before = old_path.read_bytes()
    spent = Ledger.read(old_path).spent(1e-5)
    assert spent.epsilon > 0
    with Ledger.open(old_path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        assert (run.charged_until, run.released_until) == (4, 4)
        assert ledger.spent(1e-5) == spent
        run.charge(4, 8, EVENT, released=5)
        run.release(7)
    assert old_path.read_bytes().startswith(before)
    assert released_until(old_path) == 7
    assert Ledger.read(old_path).spent(1e-5).epsilon > spent.epsilon


def test_new_ledgers_have_version_3(path):
    Ledger.open(path, **TERMS).close()
    assert last_entry(path)["version"] == 3


def test_the_content_of_each_release_is_recorded(path):
    one, two = "1" * 32, "2" * 32
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 4, EVENT, released=1, content=one)
        run.release(3, content=two)
        run.release(3, content=one)  # already released, so it is not written
    run = Ledger.read(path).run("run", **RUN)
    assert [run.content_of(stop) for stop in (1, 2, 3)] == [one, "", two]
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        for wrong in ("x" * 32, "1" * 31, None, 3):
            with pytest.raises(FixArgumentsError, match="content="):
                run.release(4, content=wrong)
        run.charge(2, 5, EVENT, attempt=1, content=two)
        assert [run.content_of(stop) for stop in (1, 3, 5)] == ["", "", two]
