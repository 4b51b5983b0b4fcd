"""Mistakes in the arguments of a search are found before anything is charged or written."""

import re

import numpy as np
import pytest
import searches
from searches import of_trials, search

from bevel.errors import FixArgumentsError, RestoreCheckpointError
from bevel.training import Trainer
from bevel.tuning import OneOf


@pytest.mark.parametrize(
    "given, message",
    [
        ({"scored": None}, "score=None: pass a function"),
        ({"settings_of": 3}, "settings_of=3: pass a function"),
        ({"make": None}, "make_trainer=None: pass a function"),
        ({"score_name": "epsilon"}, "is a metric of every run: pass another name"),
        ({"score_name": ""}, "score_name='': pass a string that is not empty"),
        ({"options": {"delta": 1e-3}}, "pass RunOptions(...)"),
        ({"options": searches.options(accept=["loss"])}, "trials that change on the way"),
        ({"space": {3: OneOf(1, 2)}}, "a name in space=3: pass a string"),
    ],
)
def test_a_mistake_costs_nothing(tmp_path, given, message):
    with pytest.raises(FixArgumentsError, match=re.escape(message)):
        search(tmp_path / "search", **given)
    assert not (tmp_path / "search").exists()


def test_another_model_state_is_refused(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)

    def loss(params, state, batch, prng):
        return (params["w"].sum() + batch["x"].sum()) * state["scale"], {}

    def make(settings):
        optimizer = searches.make_trainer(settings).optimizer
        return Trainer(config=searches.config(), loss_fn=loss, optimizer=optimizer)

    def killed(_):
        raise KeyboardInterrupt

    state = {"scale": np.float32(1.0)}
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "search", make=make, scored=killed, model_state=state)
    with pytest.raises(RestoreCheckpointError, match="other values of model_state"):
        search(tmp_path / "search", make=make, model_state={"scale": np.float32(2.0)})
    assert search(tmp_path / "search", make=make, model_state=state).settings
