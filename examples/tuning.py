"""Search the learning rate and the clip norm privately, kill the search, and go on.

python examples/tuning.py
"""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax

from bevel.accounting import Ledger
from bevel.execution_plan import DPSGDConfig
from bevel.training import RunOptions, Trainer
from bevel.tuning import LogUniform, OneOf, TrialCount, calibrated, tune

rng = np.random.default_rng(0)
weights = rng.normal(size=8)


def examples(count):
    x = rng.normal(size=(count, 8)).astype(np.float32)
    return {"x": x, "y": (x @ weights > 0).astype(np.float32)}


train, public = examples(2000), examples(500)  # the second is not protected
params = {"w": jnp.zeros(8)}


def loss(params, batch, prng):
    logits = batch["x"] @ params["w"]
    return optax.sigmoid_binary_cross_entropy(logits, batch["y"]).mean(), {}


# The noise of a trial is such that the whole search is within epsilon 2.
trials = TrialCount(3, "geometric")
config = DPSGDConfig.default(2000, 200, 10, noise_multiplier=1.0)
config = calibrated(config, trials, epsilon=2.0, delta=1e-5)


def make_trainer(settings):
    trial = DPSGDConfig.default(
        2000,
        200,
        10,
        noise_multiplier=config.noise_multiplier,
        l2_clip_norm=settings["clip_norm"],
    )
    optimizer = optax.sgd(settings["learning_rate"])
    return Trainer(config=trial, loss_fn=loss, optimizer=optimizer)


calls = []


def accuracy(params):
    calls.append(params)
    if len(calls) == 1:
        raise KeyboardInterrupt  # as if somebody had pressed Ctrl-C after the first trial
    return float(((public["x"] @ np.asarray(params["w"]) > 0) == public["y"]).mean())


folder = Path(tempfile.mkdtemp()) / "search"
search = {
    "space": {"learning_rate": LogUniform(0.01, 10.0), "clip_norm": OneOf(0.5, 1.0, 2.0)},
    "data": train,
    "params": params,
    "score": accuracy,
    "folder": folder,
    "expected_trials": trials.expected,
    "options": RunOptions(delta=1e-5, progress=False, tensorboard=False, compilations=1),
}
try:
    tune(make_trainer, **search)
except KeyboardInterrupt:
    print("killed; charged so far:", Ledger.read(folder / "released/ledger.jsonl").runs)
result = tune(make_trainer, **search)  # goes on with the same trials
print(f"best settings: {result.settings}, accuracy {result.score:.3f} on public data")
print(result.price)
print(Ledger.read(folder / "released/ledger.jsonl").spent().describe().splitlines()[0])
