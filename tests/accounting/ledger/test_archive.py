"""A compacted ledger is short, and its archives prove what it no longer holds."""

import json

import pytest

from bevel.accounting import Ledger
from bevel.errors import FixArgumentsError, FixStorageError, RestoreLedgerError

EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 8.0}
TERMS = {"unit": "example", "relation": "REPLACE_ONE"}


def charged(path, steps, compact=True, **options):
    """Charges steps, and compacts the ledger. Returns the archive."""
    with Ledger.open(path, **TERMS, **options) as ledger:
        run = ledger.run("run", plan="plan", key="a" * 64)
        for step in steps:
            run.charge(step, step + 1, EVENT)
        return ledger.compact() if compact else None


@pytest.fixture(name="path")
def fixture_path(tmp_path):
    """Compacted twice, with three more lines after that."""
    path = tmp_path / "ledger.jsonl"
    charged(path, range(10))
    charged(path, range(10, 15))
    charged(path, range(15, 18), compact=False)
    return path


def test_a_compacted_ledger_says_the_same(path, tmp_path):
    plain = tmp_path / "plain.jsonl"
    charged(plain, range(18), compact=False)
    short, full, expected = Ledger.read(path), Ledger.read(path, full=True), Ledger.read(plain)
    assert len(path.read_bytes().splitlines()) == 2 + 3
    assert short.head == full.head and short.line_count == full.line_count
    for ledger in (short, full):
        assert ledger.spent(1e-5).epsilon == expected.spent(1e-5).epsilon
        assert ledger.released("run") == (0, 18)


def test_the_archives_and_the_ledger_are_one_chain(path):
    archives = sorted(path.parent.glob("*.archive-*"), key=lambda p: int(p.name.split("-")[-1]))
    assert [archive.name for archive in archives] == [
        "ledger.jsonl.archive-11",
        "ledger.jsonl.archive-17",
    ]
    rest = path.read_bytes().split(b"\n", 1)[1]
    whole = b"".join(archive.read_bytes() for archive in archives) + rest
    path.write_bytes(whole)
    for archive in archives:
        archive.unlink()
    assert Ledger.read(path, full=True).line_count == Ledger.read(path).line_count == 21


@pytest.mark.parametrize("kept", [11, 8], ids=["before its last compaction", "with fewer lines"])
def test_a_ledger_that_was_set_back_is_noticed_beside_its_archives(path, kept):
    archive = path.with_name("ledger.jsonl.archive-11").read_bytes()
    path.write_bytes(b"".join(archive.splitlines(keepends=True)[:kept]))
    held = path.read_bytes()
    with pytest.raises(RestoreLedgerError, match=r"17 beside it holds 17 lines of it.*set back"):
        Ledger.read(path)
    with pytest.raises(RestoreLedgerError, match="set back"):
        charged(path, range(10, 11), compact=False)
    assert path.read_bytes() == held


def test_an_archive_of_another_ledger_or_without_a_number_does_not_count(path):
    for name in ("ledger.jsonl.archive-99.new", "ledger.jsonl.archive-x", "other.archive-99"):
        path.with_name(name).touch()
    assert Ledger.read(path).line_count == 21


def test_a_missing_or_changed_archive_is_named(path):
    archive = path.with_name("ledger.jsonl.archive-11")
    data = archive.read_bytes()
    archive.unlink()
    Ledger.read(path)
    with pytest.raises(RestoreLedgerError, match="archive-11, which does not exist"):
        Ledger.read(path, full=True)
    lines = data.splitlines(keepends=True)
    for changed in (b"", b"{}\n", b"".join(lines[:-1]), data.replace(b'"stop":3', b'"stop":4')):
        archive.write_bytes(changed)
        with pytest.raises(RestoreLedgerError):
            Ledger.read(path, full=True)


def test_an_anchor_and_a_head_stay_valid(tmp_path):
    path, anchor = tmp_path / "ledger.jsonl", tmp_path / "anchor"
    charged(path, range(4), anchor=anchor)
    head = Ledger.read(path).head
    charged(path, range(4, 6), compact=False, anchor=anchor)
    Ledger.read(path).check_head(head)
    before = path.read_bytes()
    charged(path, range(6, 7), compact=False, anchor=anchor)
    path.write_bytes(before)
    with pytest.raises(RestoreLedgerError, match="rolled back"):
        charged(path, range(6, 7), anchor=anchor)


def test_heads_of_archived_lines_are_found_in_the_archives(path):
    head = json.loads(path.with_name("ledger.jsonl.archive-11").read_bytes().splitlines()[4])[
        "hash"
    ]
    Ledger.read(path).check_head(head)
    with pytest.raises(RestoreLedgerError, match="has no line with the hash"):
        Ledger.read(path).check_head("c" * 64)
    path.with_name("ledger.jsonl.archive-11").unlink()
    with pytest.raises(RestoreLedgerError, match="archive-11, which does not exist"):
        Ledger.read(path).check_head(head)


def test_the_header_of_a_compacted_ledger_cannot_be_exchanged(path, tmp_path):
    other = tmp_path / "other.jsonl"
    with Ledger.open(other, unit="user", relation="REPLACE_ONE"):
        pass
    rest = path.read_bytes().split(b"\n", 1)[1]
    path.write_bytes(other.read_bytes() + rest)
    with pytest.raises(RestoreLedgerError, match="belongs to another ledger"):
        Ledger.read(path)


def test_compacting_keeps_the_lock_and_the_mode(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", plan="plan", key="a" * 64).charge(0, 1, EVENT)
        archive = ledger.compact()
        with pytest.raises(FixArgumentsError, match="locked by another run"):
            Ledger.open(path, **TERMS)
        ledger.run("run", plan="plan", key="a" * 64).charge(1, 2, EVENT)
    assert path.stat().st_mode & 0o777 == archive.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FixArgumentsError, match="not open for writing"):
        Ledger.read(path).compact()


def killed(data):
    raise KeyboardInterrupt


def test_a_kill_between_the_two_files_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", plan="plan", key="a" * 64).charge(0, 1, EVENT)
        monkeypatch.setattr(
            ledger._writable, "replace", lambda data: (_ for _ in ()).throw(OSError)
        )
        with pytest.raises(FixStorageError, match="OSError"):
            ledger.compact()
    charged(path, range(1, 3))
    assert Ledger.read(path, full=True).released("run") == (0, 3)
