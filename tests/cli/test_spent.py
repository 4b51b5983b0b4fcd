"""`bevel spent` reads a ledger, and says what is wrong with it."""

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


@pytest.mark.parametrize("folder", [False, True])
def test_what_was_spent(ledger, folder, capsys):
    assert main(["spent", str(ledger.parent if folder else ledger)]) == 0
    assert Ledger.read(ledger).spent().describe() in capsys.readouterr().out


def test_a_damaged_ledger_is_not_read(ledger, capsys):
    ledger.write_text(ledger.read_text().replace("first", "other"))
    assert main(["spent", str(ledger)]) == 1
    assert capsys.readouterr().err.startswith("bevel: ")


def test_no_ledger(tmp_path, capsys):
    assert main(["spent", str(tmp_path)]) == 1
    assert "there is no ledger at" in capsys.readouterr().err
