"""An anchor on other storage shows when a ledger was rolled back, truncated or replaced."""

import json
import os
import shutil

import pytest

from bevel.accounting.ledger import Ledger
from bevel.errors import FixArgumentsError, FixStorageError, RestoreLedgerError

TERMS = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE"}
EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}
RUN = {"plan": "plan", "key": "a" * 64}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "ledger.jsonl"


@pytest.fixture
def anchor(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "anchor.json"


def charge(path, anchor, count=1):
    with Ledger.open(path, **TERMS, anchor=anchor) as ledger:
        run = ledger.run("run", **RUN)
        for step in range(run.charged_until, run.charged_until + count):
            run.charge(step, step + 1, EVENT)


def content(anchor):
    return json.loads(anchor.read_bytes())


def test_the_anchor_is_the_head_after_every_line(path, anchor):
    with Ledger.open(path, **TERMS, anchor=anchor) as ledger:
        assert content(anchor) == {"head": ledger.head, "lines": 1}
        run = ledger.run("run", **RUN)
        run.charge(0, 4, EVENT, released=1)
        assert content(anchor) == {"head": ledger.head, "lines": 2}
        run.release(3)
        assert content(anchor) == {"head": ledger.head, "lines": 3}
    assert os.listdir(anchor.parent) == ["anchor.json"]
    charge(path, anchor)
    assert content(anchor)["lines"] == 4


def test_a_folder_that_was_rolled_back_is_detected(path, anchor, tmp_path):
    charge(path, anchor, 3)
    shutil.copytree(path.parent, tmp_path / "backup")
    charge(path, anchor)
    shutil.rmtree(path.parent)
    shutil.copytree(tmp_path / "backup", path.parent)
    before = path.read_bytes(), anchor.read_bytes()
    Ledger.open(path, **TERMS).close()  # without the anchor it goes unnoticed
    with pytest.raises(RestoreLedgerError, match="rolled back, truncated or replaced"):
        Ledger.open(path, **TERMS, anchor=anchor)
    assert (path.read_bytes(), anchor.read_bytes()) == before
    Ledger.open(path, **TERMS).close()  # and the lock was released


def test_a_ledger_that_continued_from_a_copy_is_detected(path, anchor, tmp_path):
    charge(path, anchor, 3)
    shutil.copy(path, tmp_path / "copy")
    charge(path, anchor)
    shutil.copy(tmp_path / "copy", path)
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", **RUN).charge(3, 5, EVENT)
    with pytest.raises(RestoreLedgerError, match="Restore the ledger that belongs to the anchor"):
        Ledger.open(path, **TERMS, anchor=anchor)


def test_a_missing_ledger_is_not_created_again(path, anchor):
    charge(path, anchor)
    path.unlink()
    with pytest.raises(RestoreLedgerError, match="was moved or removed"):
        Ledger.open(path, **TERMS, anchor=anchor)
    assert os.listdir(path.parent) == []


def test_the_anchor_of_another_ledger_is_refused(path, anchor, tmp_path):
    charge(path, anchor)
    charge(tmp_path / "other", tmp_path / "anchor_of_other", 3)
    with pytest.raises(RestoreLedgerError, match="truncated or replaced"):
        Ledger.open(path, **TERMS, anchor=tmp_path / "anchor_of_other")
    with pytest.raises(RestoreLedgerError, match="was moved or removed"):
        Ledger.open(tmp_path / "third", **TERMS, anchor=anchor)
    assert not (tmp_path / "third").exists()


def test_a_kill_before_the_anchor_is_written_leaves_a_valid_older_head(path, anchor, monkeypatch):
    charge(path, anchor)
    older = anchor.read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    with Ledger.open(path, **TERMS, anchor=anchor) as ledger:
        run = ledger.run("run", **RUN)
        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run.charge(1, 2, EVENT)
        monkeypatch.undo()
    assert anchor.read_bytes() == older
    with Ledger.open(path, **TERMS, anchor=anchor) as ledger:
        assert ledger.run("run", **RUN).charged_until == 2
        assert content(anchor) == {"head": ledger.head, "lines": 3}


def test_a_charge_that_cannot_be_anchored_raises_and_is_counted(path, anchor):
    with Ledger.open(path, **TERMS, anchor=anchor) as ledger:
        run = ledger.run("run", **RUN)
        anchor.parent.rename(anchor.parent.with_name("unmounted"))
        with pytest.raises(FixStorageError, match=r"anchor.*moved or removed"):
            run.charge(0, 1, EVENT)
        assert run.charged_until == 1
        assert Ledger.read(path).line_count == 2


def test_anchoring_an_existing_ledger_gives_a_warning(path, anchor):
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", **RUN).charge(0, 1, EVENT)
    with pytest.warns(UserWarning, match="has 2 lines and had no anchor"):
        Ledger.open(path, **TERMS, anchor=anchor).close()
    assert content(anchor)["lines"] == 2
    Ledger.open(path, **TERMS, anchor=anchor).close()  # no warning: warnings are errors here


def test_anchoring_an_empty_ledger_gives_no_warning(path, anchor):
    Ledger.open(path, **TERMS).close()
    Ledger.open(path, **TERMS, anchor=anchor).close()
    assert content(anchor)["lines"] == 1


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0\0",
        b"{}",
        b"[1]",
        b'{"head": "x", "lines": 1}',
        b'{"head": 3, "lines": 1}',
        b'{"head": "%s", "lines": 0}' % (b"a" * 64),
        b'{"head": "%s", "lines": true}' % (b"a" * 64),
        b'{"head": "%s", "lines": 1, "more": 1}' % (b"a" * 64),
    ],
)
def test_a_damaged_anchor_is_refused_and_not_changed(path, anchor, damaged):
    charge(path, anchor)
    anchor.write_bytes(damaged)
    before = path.read_bytes()
    with pytest.raises(RestoreLedgerError, match="is not the anchor of a ledger"):
        Ledger.open(path, **TERMS, anchor=anchor)
    assert (path.read_bytes(), anchor.read_bytes()) == (before, damaged)


def test_a_ledger_that_does_not_fit_its_anchor_is_not_repaired(path, anchor):
    charge(path, anchor, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    before = path.read_bytes()
    with pytest.raises(RestoreLedgerError, match="rolled back, truncated"):
        Ledger.open(path, **TERMS, anchor=anchor)
    assert path.read_bytes() == before and os.listdir(path.parent) == ["ledger.jsonl"]


def test_anchor_paths_are_checked(path, tmp_path):
    with pytest.raises(FixArgumentsError, match="cannot be its own anchor"):
        Ledger.open(path, **TERMS, anchor=path)
    with pytest.raises(FixArgumentsError, match="does not exist"):
        Ledger.open(path, **TERMS, anchor=tmp_path / "unmounted" / "anchor")
    assert os.listdir(path.parent) == []
