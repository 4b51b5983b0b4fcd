"""The ledger file: charges are in it, and damage is detected."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import dp_accounting
import numpy as np
import pytest

from bevel.accounting.ledger import Budget, Ledger, key_commitment, new_salt
from bevel.errors import FixArgumentsError, FreeSpaceError, RestoreLedgerError

TERMS = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE"}
EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}
RUN = {"plan": "plan", "key": "a" * 64}
TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    """A ledger of a run with four charges."""
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        for step in range(4):
            run.charge(step, step + 1, EVENT)
    return path


def charged_until(path):
    return Ledger.read(path).run("run", **RUN).charged_until


def test_a_charge_is_in_the_file_when_it_returns(path):
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", **RUN).charge(4, 9, dp_accounting.GaussianDpEvent(2.5))
        entry = json.loads(path.read_text().splitlines()[-1])["entry"]
        assert entry == {
            "kind": "charge",
            "run": "run",
            "plan": "plan",
            "key": "a" * 64,
            "attempt": 0,
            "first": 4,
            "stop": 9,
            "released": 9,
            "content": "",
            "event": {"kind": "GaussianDpEvent", "noise_multiplier": 2.5},
        }
        assert charged_until(path) == 9


def test_a_run_resumes_where_it_was(path):
    before = path.read_bytes()
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN, checkpoint_step=4, checkpoint_head=ledger.head)
        assert (run.charged_until, run.attempt, ledger.runs) == (4, 0, ("run",))
        assert path.read_bytes() == before
        run.charge(np.int64(4), np.int64(5), EVENT)
        run.charge(2, 3, EVENT, attempt=1)
        run.charge(3, 4, EVENT)
        assert (run.charged_until, run.attempt) == (5, 1)
    assert path.read_bytes().startswith(before)


def test_a_torn_last_line_is_removed_with_a_warning(path):
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for end in range(start + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.warns(UserWarning, match="a write was cut short"):
            assert charged_until(path) == 3
        assert path.read_bytes() == whole[:end]  # reading changes nothing
    with pytest.warns(UserWarning, match=f"{end - start} bytes of an incomplete line"):
        ledger = Ledger.open(path, **TERMS)
    with ledger:
        ledger.run("run", **RUN).charge(3, 4, EVENT)
    assert path.read_bytes() == whole  # the same charge again, without a trace of the tear


def test_torn_bytes_are_saved_beside_the_ledger(path):
    whole = path.read_bytes()
    for number, torn in enumerate([b'{"entry"', b'{"entry":{"attempt":0', b"{"], start=1):
        path.write_bytes(whole + torn)
        saved = path.with_name(f"ledger.jsonl.torn-{number}")
        with pytest.warns(UserWarning, match=f"The bytes are saved in {saved}"):
            Ledger.open(path, **TERMS).close()
        assert saved.read_bytes() == torn and saved.stat().st_mode & 0o777 == 0o600
        assert path.read_bytes() == whole
    assert path.with_name("ledger.jsonl.torn-1").read_bytes() == b'{"entry"'


def test_torn_bytes_that_cannot_be_saved_are_not_removed(path, monkeypatch):
    torn = path.read_bytes() + b'{"entry"'
    path.write_bytes(torn)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(FreeSpaceError, match="No space"):
        patch.setattr(os, "write", full)
        Ledger.open(path, **TERMS)
    assert path.read_bytes() == torn


def test_a_last_line_that_lacks_only_its_line_feed_is_counted(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.warns(UserWarning, match="lacks its line feed"):
        assert charged_until(path) == 4
    assert path.read_bytes() == whole[:-1]
    with pytest.warns(UserWarning, match="lacks its line feed"):
        Ledger.open(path, **TERMS).close()
    assert path.read_bytes() == whole and len(os.listdir(path.parent)) == 1


def in_state(path):
    """Everything that must not change when a file is refused."""
    return path.read_bytes(), path.stat().st_mtime_ns, sorted(os.listdir(path.parent))


@pytest.mark.parametrize("content", [b"weights", b"a line\nand more", b"\n", b"{}\n"])
def test_a_file_that_is_not_a_ledger_is_not_changed(tmp_path, content):
    path = tmp_path / "weights"
    path.write_bytes(content)
    before = in_state(path)
    with pytest.raises(RestoreLedgerError, match="is not a l"):
        Ledger.open(path, **TERMS)
    with pytest.raises(RestoreLedgerError):
        Ledger.read(path)
    assert in_state(path) == before


def damaged(lines):
    a, b, c, d, e = lines
    whole = b"".join(lines)
    yield "reordered", [a, c, b, d, e]
    yield "removed", [a, b, d, e]
    yield "first removed", [b, c, d, e]
    yield "doubled", [a, b, c, c, d, e]
    yield "changed", [a, b, c.replace(b"1.0", b"9.0"), d, e]
    yield "last changed", [a, b, c, d, e.replace(b"1.0", b"9.0")]
    yield "last changed, without its end", [a, b, c, d, e.replace(b"1.0", b"9.0")[:-1]]
    yield "torn within", [a, b, c[:-9], d, e]
    yield "zeros", [a, b, bytes(len(c) - 1) + b"\n", d, e]
    yield "last but its end is zeros", [a, b, c, d, bytes(len(e) - 1) + b"\n"]
    yield "last is zeros", [a, b, c, d, bytes(len(e))]
    yield "empty", []
    yield "all zeros", [bytes(len(whole))]
    yield "other line ends", [whole.replace(b"\n", b"\r")]
    yield "line ends of two bytes", [whole.replace(b"\n", b"\r\n")]
    yield "other line ends but the first", [a, whole[len(a) :].replace(b"\n", b"\r")]
    yield "joined", [whole.replace(b"\n", b"")]
    yield "joined but the first", [a, whole[len(a) :].replace(b"\n", b"")]
    yield "joined at the end", [a, b, c, d[:-1], e[:-1]]
    yield "joined and torn", [a, b, c, d[:-1], e[:40]]
    yield "a line after a torn one", [a, b, c, d[:40], e[:-1]]
    yield "first alone, torn", [a[:40]]
    yield "first alone, without its end", [a[:-1]]
    yield "garbage", [whole, b"garbage"]
    yield "zeros, garbage", [whole, bytes(40), b"garbage"]
    yield "torn, zeros", [whole, e[:40], bytes(40)]
    yield "not text", [whole, b'{"entry":{"attempt":\xff']
    yield "text of another kind", [whole, '{"entry":{"attempt":0,"event":"\u00fc'.encode()]
    yield "another first line", [whole, a[:40]]
    yield "spaces", [whole, b"  "]
    yield "a mark at the start", [b"\xef\xbb\xbf", whole]


def test_other_damage_is_refused_and_the_file_is_not_changed(path):
    for name, lines in damaged(path.read_bytes().splitlines(keepends=True)):
        path.write_bytes(b"".join(lines))
        before = in_state(path)
        for look in (lambda: Ledger.open(path, **TERMS), lambda: Ledger.read(path)):
            with pytest.raises(RestoreLedgerError, match="Restore"):
                look()
        assert in_state(path) == before, name


def test_a_refused_ledger_is_never_overwritten(path):
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    for _ in range(3):
        with pytest.raises(RestoreLedgerError, match="To create a ledger, pass a path where there"):
            Ledger.open(path, **TERMS, budget=Budget(1, 1e-5))


def test_a_new_ledger_is_created_and_only_its_owner_can_read_it(tmp_path):
    Ledger.open(tmp_path / "l", **TERMS).close()
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["l"]
    with pytest.raises(FixArgumentsError, match="does not exist"):
        Ledger.open(tmp_path / "nowhere" / "l", **TERMS)


def test_a_chain_with_invalid_charges_is_refused(path):
    from bevel.accounting.ledger.hash_chain import line_of

    lines = path.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    for changed in [{"first": 9, "stop": 10}, {"event": {"kind": "x"}}, {"stop": 0}, {"key": "k"}]:
        text, _ = line_of(last["entry"] | changed, last["line"], last["previous"])
        path.write_bytes(b"".join([*lines[:-1], text]))
        with pytest.raises(RestoreLedgerError, match="line 5 cannot follow"):
            Ledger.read(path)


def test_a_checkpoint_ahead_of_the_ledger_is_refused(path):
    with (
        Ledger.open(path, **TERMS) as ledger,
        pytest.raises(
            RestoreLedgerError, match="has charges up to step 4, so released steps are missing"
        ),
    ):
        ledger.run("run", **RUN, checkpoint_step=5)


def test_removed_last_lines_are_detected_by_the_head_of_a_checkpoint(path):
    with Ledger.open(path, **TERMS) as ledger:
        head = ledger.head
        ledger.run("run", **RUN).charge(4, 5, EVENT)
    Ledger.read(path).run("run", **RUN, checkpoint_step=4, checkpoint_head=head)  # an older one
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    with pytest.raises(RestoreLedgerError, match="lines are missing, or it is another ledger"):
        Ledger.read(path).run("run", **RUN, checkpoint_step=3, checkpoint_head=head)


def test_a_head_must_be_the_hash_of_a_line(path):
    with Ledger.open(path, **TERMS) as ledger:
        heads = [ledger.head]
        ledger.run("run", **RUN).charge(4, 5, EVENT)
        heads.append(ledger.head)
        assert ledger.line_count == 6
    for head in heads:
        Ledger.read(path).check_head(head)
    for head in ["", "0" * 64, heads[0][:-1], heads[0].upper()]:
        with pytest.raises(RestoreLedgerError, match="lines are missing, or it is another ledger"):
            Ledger.read(path).check_head(head)


def test_another_plan_is_refused(path):
    with (
        Ledger.open(path, **TERMS) as ledger,
        pytest.raises(FixArgumentsError, match="started with the plan plan, but this is the"),
    ):
        ledger.run("run", plan="other", key="a" * 64)


@pytest.mark.parametrize(
    "terms, message",
    [
        ({"unit": "user"}, "has the unit example, but was opened with user"),
        ({"relation": "REPLACE_ONE"}, "different relations do not compose"),
        ({"budget": Budget(3, 1e-5)}, "a budget is fixed beforehand"),
    ],
)
def test_another_unit_relation_or_budget_is_refused(path, terms, message):
    with pytest.raises(FixArgumentsError, match=message):
        Ledger.open(path, **{**TERMS, **terms})
    Ledger.open(path, **TERMS).close()  # and the lock was released


def test_a_refused_charge_leaves_no_trace(path):
    before = path.read_bytes()
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        for steps, message in [((0, 1), "already charged"), ((7, 8), "from 4"), ((4, 4), "empty")]:
            with pytest.raises(FixArgumentsError, match=message):
                run.charge(*steps, EVENT)
        with pytest.raises(FixArgumentsError, match="first='4'"):
            run.charge("4", 5, EVENT)
        with pytest.raises(FixArgumentsError, match="Use one of: NoOpDpEvent"):
            run.charge(4, 5, dp_accounting.LaplaceDpEvent(1.0))
        assert path.read_bytes() == before
        run.charge(4, 5, EVENT)


def test_a_charge_that_could_not_be_written_is_not_counted(path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        with monkeypatch.context() as patch, pytest.raises(FreeSpaceError, match="No space"):
            patch.setattr(os, "write", full)
            run.charge(4, 5, EVENT)
        assert run.charged_until == 4 and charged_until(path) == 4
        run.charge(4, 5, EVENT)  # once there is space
    assert charged_until(path) == 5


def test_a_closed_ledger_accepts_no_charge(path):
    ledger = Ledger.open(path, **TERMS)
    ledger.close()
    ledger.close()
    for each in (ledger, Ledger.read(path)):
        with pytest.raises(FixArgumentsError, match="is not open for writing"):
            each.run("run", **RUN).charge(4, 5, EVENT)


def test_reading_a_missing_or_empty_ledger_is_an_error(tmp_path):
    with pytest.raises(FixArgumentsError, match="there is no ledger at"):
        Ledger.read(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(RestoreLedgerError, match="it is empty"):
        Ledger.read(tmp_path / "empty")


def test_the_key_is_nowhere_in_the_file(tmp_path):
    key, salt = b"\x07" * 32, new_salt()
    with Ledger.open(tmp_path / "l", **TERMS) as ledger:
        ledger.run("run", plan="plan", key=key_commitment(key, salt)).charge(0, 1, EVENT)
    text = (tmp_path / "l").read_bytes()
    assert key not in text and key.hex().encode() not in text
    assert salt not in text and salt.hex().encode() not in text
    assert key_commitment(key, salt).encode() in text


WRITER = """
import sys
sys.argv = ["ledger_kills.py"]
sys.path.insert(0, {tests!r})
from ledger_kills import EVENT, TERMS, Ledger
for _ in range(20):
    with Ledger.open({path!r}, **TERMS, wait=True) as ledger:
        run = ledger.run({name!r}, plan="plan", key={key!r})
        run.charge(run.charged_until, run.charged_until + 1, EVENT)
"""


def test_two_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    writers = []
    for name, key in [("one", "1" * 64), ("two", "2" * 64)]:
        code = WRITER.format(tests=str(TESTS), path=str(path), name=name, key=key)
        writers.append(subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE))
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors[-2000:]
    ledger = Ledger.read(path)
    for name, key in [("one", "1" * 64), ("two", "2" * 64)]:
        assert ledger.run(name, plan="plan", key=key).charged_until == 20
    assert len(path.read_text().splitlines()) == 41


def test_an_open_ledger_excludes_other_writers(path):
    with Ledger.open(path, **TERMS) as ledger:
        with pytest.raises(FixArgumentsError, match="locked by another run"):
            Ledger.open(path, **TERMS)
        ledger.run("run", **RUN).charge(4, 5, EVENT)
        assert charged_until(path) == 5  # reading needs no lock
    Ledger.open(path, **TERMS).close()


def test_opening_takes_time_in_proportion_to_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with Ledger.open(tmp_path / "l", **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        for step in range(5_000):
            run.charge(step, step + 1, EVENT)
    begin = time.process_time()
    assert charged_until(tmp_path / "l") == 5_000
    assert time.process_time() - begin < 3


def test_a_run_can_ask_what_it_affords_and_nothing_is_written(tmp_path):
    path, event = tmp_path / "ledger.jsonl", dp_accounting.GaussianDpEvent(10.0)
    with Ledger.open(path, **TERMS, budget=Budget(0.8, 1e-5)) as ledger:
        run = ledger.run("run", **RUN)
        before = path.read_bytes()
        assert run.affords(0, 1, event) and run.affords(0, 1, event)
        assert not run.affords(0, 1, dp_accounting.GaussianDpEvent(1.0))
        with pytest.raises(FixArgumentsError, match="Start at step 0"):
            run.affords(1, 2, event)
        assert path.read_bytes() == before


def test_a_run_knows_what_its_attempt_has_charged(path):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        assert run.attempt_charged == (0, 4)
        run.charge(2, 3, EVENT, attempt=1)
        assert (run.attempt_charged, run.charged_until) == ((2, 3), 4)
        assert ledger.run("other", plan="plan", key="b" * 64).attempt_charged == (0, 0)
