"""Summaries make a long ledger quick to read, and hide nothing."""

import json
from pathlib import Path

import pytest

from bevel.accounting import Ledger
from bevel.accounting.ledger import contents, summary
from bevel.accounting.ledger.hash_chain import START, line_of
from bevel.errors import RestoreLedgerError

EVENT = {"kind": "GaussianDpEvent", "noise_multiplier": 8.0}
OTHER = {"kind": "GaussianDpEvent", "noise_multiplier": 9.0}
TERMS = {"unit": "example", "relation": "REPLACE_ONE"}


@pytest.fixture(name="path")
def fixture_path(tmp_path, monkeypatch):
    """A ledger of two runs with a summary after every few lines."""
    monkeypatch.setattr(summary, "SMALLEST_GAP", 2000)
    monkeypatch.setattr(summary, "GAP", 1)
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(path, **TERMS) as ledger:
        one = ledger.run("one", plan="plan", key="a" * 64)
        two = ledger.run("two", plan="plan", key="b" * 64)
        for step in range(40):
            one.charge(step, step + 1, EVENT, content=f"{step:032x}")
            two.charge(0, step + 1, OTHER)  # restates
    return path


def entries(data: bytes) -> list[dict]:
    return [json.loads(line)["entry"] for line in data.splitlines()]


def rechained(all_entries: list[dict]) -> bytes:
    """A valid hash chain of these entries."""
    lines, previous = [], START
    for number, entry in enumerate(all_entries):
        text, previous = line_of(entry, number, previous)
        lines.append(text)
    return b"".join(lines)


def state(ledger: Ledger) -> tuple:
    totals = ledger._totals
    return totals.to_json(), ledger.head, ledger.line_count, ledger.runs


def test_reading_from_the_last_summary_equals_reading_every_line(path):
    kinds = [entry["kind"] for entry in entries(path.read_bytes())]
    assert 3 < kinds.count("summary") < len(kinds) / 4
    quick, full = Ledger.read(path), Ledger.read(path, full=True)
    assert state(quick) == state(full)
    assert quick.spent(1e-5).epsilon == full.spent(1e-5).epsilon
    for line in json.loads(path.read_bytes().splitlines()[1])["hash"], quick.head:
        quick.check_head(line)
    with pytest.raises(RestoreLedgerError, match="has no line with the hash"):
        quick.check_head("c" * 64)


def test_lines_before_the_last_summary_are_not_added_up_again(path, monkeypatch):
    added = []
    real = contents.entry_from_json
    monkeypatch.setattr(
        contents, "entry_from_json", lambda *args: added.append(args) or real(*args)
    )
    Ledger.read(path)
    assert len(added) < 10
    Ledger.read(path, full=True)
    assert len(added) > 80


def test_a_ledger_continues_after_a_summary(path):
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("one", plan="plan", key="a" * 64)
        assert run.charged_until == 40 and run.content_of(4) == f"{3:032x}"
        run.charge(40, 41, EVENT)
    assert state(Ledger.read(path)) == state(Ledger.read(path, full=True))


def test_every_changed_byte_is_noticed(path):
    data = path.read_bytes()
    for at in range(0, len(data) - 1, 97):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(RestoreLedgerError):
            contents.read_contents(bytes(changed), Path("the file"))


def test_removed_and_swapped_lines_are_noticed(path):
    lines = path.read_bytes().splitlines(keepends=True)
    for k in range(1, len(lines) - 1):
        removed = b"".join(lines[:k] + lines[k + 1 :])
        swapped = b"".join([*lines[:k], lines[k + 1], lines[k], *lines[k + 2 :]])
        for data in (removed, swapped):
            with pytest.raises(RestoreLedgerError):
                contents.read_contents(data, Path("the file"))


def test_a_summary_that_claims_less_is_found_by_a_full_read(path):
    """Whoever writes a whole new chain can claim anything; a full read still adds up."""
    forged = entries(path.read_bytes())
    last = max(k for k, entry in enumerate(forged) if entry["kind"] == "summary")
    counts = forged[last]["totals"]["counts"]
    counts[next(iter(counts))] = 1
    with pytest.raises(RestoreLedgerError, match="states other totals than the lines before it"):
        contents.read_contents(rechained(forged), Path("the file"), trusted=0)


def test_a_summary_belongs_to_its_header(path):
    forged = entries(path.read_bytes())
    forged[0] = {**forged[0], "unit": "user"}
    for trusted in (None, 0):
        with pytest.raises(RestoreLedgerError):
            contents.read_contents(rechained(forged), Path("the file"), trusted=trusted)


def test_a_summary_that_was_cut_short_is_not_counted(path):
    data = path.read_bytes()
    start = data.rfind(b'{"entry":{"header"')
    for size in (start + 5, start + 100, data.index(b"\n", start)):
        found = contents.read_contents(data[:size], Path("the file"))
        assert found.torn == data[start:size] or found.lacks_newline
        assert found.hashes.head in data[:size].decode()


def test_ledgers_of_version_2_get_no_summaries(path):
    header, *others = (e for e in entries(path.read_bytes()) if e["kind"] != "summary")
    path.write_bytes(rechained([{**header, "version": 2}, *others]))
    with Ledger.open(path, **TERMS) as ledger:
        run = ledger.run("one", plan="plan", key="a" * 64)
        for step in range(40, 80):
            run.charge(step, step + 1, EVENT)
    assert "summary" not in {entry["kind"] for entry in entries(path.read_bytes())}


def test_only_the_newest_digests_are_kept(path):
    totals = Ledger.read(path)._totals
    totals.runs["one"].contents = {k: "" for k in range(5000)}
    kept = totals.to_json()["runs"]["one"]["contents"]
    assert list(kept) == [str(k) for k in range(5000 - 1024, 5000)]
