"""Tiny searches for the tests of tuning: the learning rate of a linear model, 2 steps a trial."""

import optax
import training_runs

from bevel.execution_plan import DPSGDConfig
from bevel.training import Trainer
from bevel.tuning import LogUniform, TrialCount, tune

SPACE = {"rate": LogUniform(0.01, 10.0)}
DELTA = 1e-3


def config(**changed):
    fields = {"num_examples": training_runs.N, "expected_batch_size": 8, "iterations": 2}
    return DPSGDConfig.default(**fields | {"noise_multiplier": 2.0} | changed)


def make_trainer(settings):
    """A trial. Only settings that are named like fields of the config change its event."""
    fields = {name: value for name, value in settings.items() if name != "rate"}
    optimizer = optax.inject_hyperparams(optax.sgd)(settings.get("rate", 1.0))
    return Trainer(config=config(**fields), loss_fn=training_runs.loss, optimizer=optimizer)


def score(params):
    return float(params["w"].sum())


def options(**changed):
    return training_runs.options(**{"delta": DELTA} | changed)


def search(folder, *, space=SPACE, scored=score, **changed):
    chosen = {"folder": folder, "options": options(), "expected_trials": 3.0} | changed
    make = chosen.pop("make", make_trainer)
    data, params = chosen.pop("data", training_runs.data()), training_runs.params()
    return tune(make, space, data, params, score=scored, **chosen)


def of_trials(monkeypatch, number):
    """Fixes the secret number of trials."""
    monkeypatch.setattr(TrialCount, "draw", lambda *_: number)
