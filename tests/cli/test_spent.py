"""`bevel spent` reads a ledger, and says what is wrong with it."""

import json
import shutil

import pytest

from bevel.accounting import Budget, Ledger, dpsgd_event, key_commitment
from bevel.cli import main


@pytest.fixture(name="ledger")
def fixture_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    terms = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE", "budget": Budget(3, 1e-5)}
    with Ledger.open(path, **terms) as ledger:
        key = key_commitment(b"the key of a test", salt=b"0123456789abcdef")
        run = ledger.run("first", plan="p", key=key)
        run.charge(0, 2, dpsgd_event(1.1, 2, sampling_prob=0.01))
    return path


@pytest.mark.parametrize("given", ["the file", "its folder", "the folder above released"])
def test_what_was_spent(ledger, given, tmp_path, capsys):
    path = {"the file": ledger, "its folder": tmp_path}.get(given)
    if path is None:
        path = tmp_path / "run"
        (path / "released").mkdir(parents=True)
        shutil.move(ledger, path / "released" / "ledger.jsonl")
        ledger = path / "released" / "ledger.jsonl"
    assert main(["spent", str(path)]) == 0
    read = Ledger.read(ledger)
    printed = capsys.readouterr().out
    assert " ".join(read.spent().describe().split()) in " ".join(printed.split())
    assert printed.endswith(f"\nlines: 2\nhead: {read.head}\n")
    assert max(map(len, printed.splitlines())) <= 80


def test_a_compacted_ledger_says_the_same(ledger, capsys):
    assert main(["spent", str(ledger)]) == 0
    before = capsys.readouterr().out.split("lines:")[0]
    assert main(["spent", str(ledger), "--compact"]) == 0
    printed = capsys.readouterr()
    assert printed.out.split("lines:")[0] == before
    assert printed.err == f"archive: {ledger}.archive-2\n"
    assert main(["spent", str(ledger), "--full"]) == 0
    assert capsys.readouterr().out.split("lines:")[0] == before


def test_json_is_for_programs(ledger, capsys):
    assert main(["spent", str(ledger), "--json"]) == 0
    printed = capsys.readouterr()
    read = Ledger.read(ledger)
    assert json.loads(printed.out) == {
        "epsilon": read.spent().epsilon,
        "delta": 1e-5,
        "unit": "example",
        "relation": "ADD_OR_REMOVE_ONE",
        "budget": {"epsilon": 3, "delta": 1e-5},
        "runs": ["first"],
        "lines": 2,
        "head": read.head,
    }


def test_the_fingerprint_of_a_plan_is_shortened(tmp_path, capsys):
    path = tmp_path / "ledger.jsonl"
    terms = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE", "budget": Budget(3, 1e-5)}
    with Ledger.open(path, **terms) as ledger:
        key = key_commitment(b"the key of a test", salt=b"0123456789abcdef")
        run = ledger.run("first", plan="0123456789abcdef" * 4, key=key)
        run.charge(0, 2, dpsgd_event(1.1, 2, sampling_prob=0.01))
    assert main(["spent", str(path)]) == 0
    assert "attempts 1, plan 0123456789ab\n" in capsys.readouterr().out


def test_what_was_released_is_read_before_what_is_beside_it(ledger, tmp_path, capsys):
    (tmp_path / "released").mkdir()
    shutil.copy(ledger, tmp_path / "released")
    ledger.write_bytes(b"")
    assert main(["spent", str(tmp_path)]) == 0


def test_a_head_that_is_kept_shows_that_no_line_is_missing(ledger, capsys):
    head = Ledger.read(ledger).head
    assert main(["spent", str(ledger), "--head", head]) == 0
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    capsys.readouterr()
    assert main(["spent", str(ledger), "--head", head]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("bevel: ") and "lines are missing" in said.err
    assert said.out == ""


def test_a_damaged_ledger_is_not_read(ledger, capsys):
    ledger.write_text(ledger.read_text().replace("first", "other"))
    assert main(["spent", str(ledger)]) == 1
    assert capsys.readouterr().err.startswith("bevel: ")


def test_a_ledger_elsewhere_is_found_by_the_record_of_the_run(ledger, tmp_path, capsys):
    released = tmp_path / "runs" / "one" / "released"
    released.mkdir(parents=True)
    (released / "run.json").write_text('{"ledger": "../../../ledger.jsonl"}')
    for folder in (released, released.parent):
        assert main(["spent", str(folder)]) == 0
    assert "run" in capsys.readouterr().out


def test_no_ledger(tmp_path, capsys):
    assert main(["spent", str(tmp_path)]) == 1
    assert "there is no ledger at" in capsys.readouterr().err
