"""A run records how its settings were chosen, and an owner may only say what costs nothing."""

import dataclasses
import json

import pytest
import training_runs

from bevel.errors import FixArgumentsError
from bevel.training import RunOptions
from bevel.training.tuning_record import GRID, PRIVATE_SELECTION, Tuning


def test_an_owner_may_say_public_or_unknown():
    assert RunOptions().tuning == Tuning("unknown")
    assert RunOptions(tuning="public").tuning == Tuning.of("public")
    for way in (GRID, PRIVATE_SELECTION, "free", None):
        with pytest.raises(FixArgumentsError, match="pass 'public' if the settings were chosen by"):
            RunOptions(tuning=way)
    with pytest.raises(FixArgumentsError, match="tuning='free'"):
        Tuning("free")


def test_a_run_records_how_it_was_tuned(tmp_path):
    training_runs.fit(tmp_path / "run", options=training_runs.options(tuning="public"))
    record = json.loads((tmp_path / "run/released/run.json").read_text())
    assert record["tuning"] == dataclasses.asdict(Tuning("public"))
