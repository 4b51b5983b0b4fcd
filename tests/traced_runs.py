"""A finished run with correlated noise, copied for each test that writes something into it."""

import shutil

import jax
import numpy as np
import optax
import training_runs as runs

from bevel.auditing.released_files import checkpoint_arrays

HIDDEN = 24


def params():
    return {"unused": jax.numpy.zeros((runs.D, HIDDEN)), "w": jax.numpy.zeros((runs.D, HIDDEN))}


def loss(params, batch, prng):
    logits = (batch["x"] @ params["w"])[:, :2] + params["unused"].sum() * 0
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), {}


def run(folder, steps=3):
    """A run of BandMF in which `unused` has zero gradients, so its state is noise alone."""
    config = runs.BandMFConfig(
        steps, 1.0, (1.0, 0.5, 0.25), num_examples=runs.N, noise_multiplier=1.5
    )
    trainer = runs.trainer(config=config.make(secrets=runs.PlanSecrets.for_tests(0)), loss_fn=loss)
    runs.fit(folder, of=trainer, begin=params(), options=runs.options(checkpoint_every=1))
    return folder


def copy(folder, to):
    return shutil.copytree(folder, to / "run")


def buffers(folder):
    """The noise buffers of the last checkpoint: one stack for each parameter."""
    arrays = list(checkpoint_arrays(folder / "private").values())[-1]
    return [x for name, x in arrays.items() if x.ndim == 3 and np.issubdtype(x.dtype, np.floating)]
