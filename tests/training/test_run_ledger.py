"""A run charges before it releases, and marks releases of steps that were charged in advance."""

import dataclasses
import json

import pytest
import training_runs as runs

from bevel.errors import FixArgumentsError, RestoreLedgerError
from bevel.execution_plan import PlanSecrets
from bevel.training.checkpoint_metadata import CheckpointMetadata
from bevel.training.run_ledger import RunLedger

SECRETS = PlanSecrets.for_tests(3)


def opened(path, plan):
    ledger = RunLedger(path, plan, "one", None, None, path.parent)
    ledger.join(SECRETS.commitment)
    return ledger


def entries(path):
    return [json.loads(line)["entry"] for line in path.read_text().splitlines()[1:]]


def position(ledger):
    return ledger.attempt, ledger.attempt_start, ledger.charged, ledger.released


def test_steps_are_charged_once_and_the_position_is_read_back(tmp_path):
    path, plan = tmp_path / "ledger.jsonl", runs.plan()
    ledger = opened(path, plan)
    one, two = "a" * 32, "b" * 32
    ledger.release(2, one)
    ledger.release(2, two)
    ledger.release(4, two)
    assert ledger.charged_for(2, one) and ledger.charged_for(4, two)
    assert not ledger.charged_for(2, two) and not ledger.charged_for(3, one)
    assert [(e["first"], e["stop"]) for e in entries(path)] == [(0, 2), (2, 4)]
    assert ledger.epsilon(None) is None and ledger.epsilon(1e-5) > 0
    ledger.close()
    again = opened(path, plan)
    assert position(again) == position(ledger) == (0, 0, 4, 4)
    again.begin_attempt(2)
    again.release(4, one)
    assert [(e["first"], e["attempt"]) for e in entries(path)][-1] == (2, 1)
    again.close()


def test_what_was_charged_ahead_is_marked_when_it_is_released(tmp_path):
    path, plan = tmp_path / "ledger.jsonl", runs.BANDMF.make(secrets=SECRETS)
    ledger = opened(path, plan)
    ledger.release(1, "")
    assert position(ledger) == (0, 0, 3, 1)  # BandMF with three bands charges three steps at once
    ledger.release(2, "c" * 32)
    assert ledger.charged_for(2, "c" * 32)
    ledger.close()
    assert [entry["kind"] for entry in entries(path)] == ["charge", "release"]
    again = opened(path, plan)
    assert position(again) == (0, 0, 3, 2)
    again.close()


def test_a_checkpoint_that_the_ledger_does_not_know_is_refused(tmp_path):
    path, plan = tmp_path / "ledger.jsonl", runs.BANDMF.make(secrets=SECRETS)
    ledger = opened(path, plan)
    ledger.release(1, "")
    meta = CheckpointMetadata(1, 0, plan.fingerprint(), SECRETS.commitment, ledger.head)
    ledger.check_contains(meta)
    with pytest.raises(RestoreLedgerError, match="ends with step 1"):
        ledger.check_contains(dataclasses.replace(meta, step=2))
    with pytest.raises(RestoreLedgerError, match="checkpoint 1 of attempt 1"):
        ledger.check_contains(dataclasses.replace(meta, attempt=1))
    with pytest.raises(RestoreLedgerError, match="charges up to step 3"):
        ledger.check_contains(dataclasses.replace(meta, step=5))
    with pytest.raises(RestoreLedgerError, match="hash"):
        ledger.check_contains(dataclasses.replace(meta, ledger="0" * 64))
    with pytest.raises(FixArgumentsError, match="another name"):
        ledger.check_is_new(tmp_path)
    ledger.close()


def test_a_run_detects_a_ledger_that_was_rolled_back(tmp_path):
    path, plan = tmp_path / "ledger.jsonl", runs.plan()
    ledger = opened(path, plan)
    ledger.release(2, "a" * 32)
    before = path.read_bytes()
    ledger.release(4, "b" * 32)
    ledger.close()
    path.write_bytes(before)
    with pytest.raises(RestoreLedgerError, match="lines are missing"):
        opened(path, plan)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(RestoreLedgerError, match="is missing"):
        opened(path, plan)
    assert not path.exists()
