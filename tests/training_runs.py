"""Tiny runs for the tests of training: 48 examples in 4 dimensions, a linear model, 8 steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bevel.execution_plan import BandMFConfig, BLTConfig, DPSGDConfig, PlanSecrets
from bevel.training import RunOptions, Trainer

N, D, STEPS = 48, 4, 8
BANDMF = BandMFConfig(STEPS, 2.0, (1.0, 0.5, 0.25), num_examples=N, noise_multiplier=1.5)
BLT = BLTConfig(N, 8, STEPS, 4, (0.75, 0.25), (0.25, 0.125), noise_multiplier=1.5)


def data(n=N):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(n, D)).astype(np.float32)
    return {"x": x, "y": (x @ np.arange(1.0, D + 1) > 0).astype(np.int32)}


def params():
    return {"b": jnp.zeros(2), "w": jnp.zeros((D, 2))}


def loss(params, batch, prng):
    logits = batch["x"] @ params["w"] + params["b"][None]
    each = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return each.mean(), {"accuracy": (logits.argmax(-1) == batch["y"]).mean()}


def config(**changed):
    fields = {"num_examples": N, "expected_batch_size": 8, "iterations": STEPS}
    fields |= {"noise_multiplier": 1.0}
    return DPSGDConfig.default(**fields | changed)


def plan(seed=3, **changed):
    return config(**changed).make(secrets=PlanSecrets.for_tests(seed))


def trainer(**changed):
    fields = {"config": plan(), "loss_fn": loss, "optimizer": optax.sgd(0.5, momentum=0.9)}
    return Trainer(**fields | changed)


def options(**changed):
    fields = {"checkpoint_every": 2, "compilations": 1, "progress": False, "tensorboard": False}
    return RunOptions(**fields | changed)


def fit(folder=None, *, given=None, of=None, begin=None, **changed):
    """A run of `of` (a trainer) on `given` (the data)."""
    chosen = changed.pop("options", None) or options()
    return (of or trainer()).fit(
        data() if given is None else given,
        params() if begin is None else begin,
        folder=folder,
        options=chosen,
        **changed,
    )


def arrays(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def same_bits(a, b):
    a, b = arrays(a), arrays(b)
    return len(a) == len(b) and all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def at_step(step):
    """A callback that ends a run there."""
    return lambda state, metrics: metrics["step"] == step
