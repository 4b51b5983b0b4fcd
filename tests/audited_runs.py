"""Small runs for the tests of audits: 5,200 examples, 7,680 parameters, 5,000 canaries."""

import jax.numpy as jnp
import numpy as np
import optax

from bevel.auditing import audit
from bevel.execution_plan import (
    AdaptiveClipping,
    BandMFConfig,
    BLTConfig,
    DPSGDConfig,
    PlanSecrets,
)
from bevel.training import RunOptions, Trainer

N, D, CANARIES, DELTA, LARGE_DELTA = 5_200, 60, 5_000, 1e-5, 1e-2
# Epsilon is about 4 for each: there, a bound finds violations by the smallest factors.
FULL_BATCH = DPSGDConfig.default(N, N, 2, noise_multiplier=1.4)
HALF_BATCH = DPSGDConfig.default(N, N / 2, 12, noise_multiplier=2.2)
BANDMF = BandMFConfig(
    8, 2.0, (1.0, 0.5), num_examples=N, noise_multiplier=1.8, neighboring_relation="REPLACE_SPECIAL"
)
BLT = BLTConfig(N, N / 4, 8, 4, (0.75, 0.25), (0.25, 0.125), noise_multiplier=1.0)
ADAPTIVE = DPSGDConfig.default(
    N, N, 2, noise_multiplier=1.4, adaptive_clipping=AdaptiveClipping(0.5)
)
USERS = DPSGDConfig.default(
    N, N, 2, noise_multiplier=1.4, unit="user", examples_per_user_per_batch=2
)
BALLS_IN_BINS = DPSGDConfig(N, N // 2, 4, "balls_in_bins", noise_multiplier=1.4)
OPTIONS = RunOptions(progress=False, compilations=1, tensorboard=False)


def data(records=N):
    return {"x": np.random.default_rng(0).normal(size=(records, D)).astype(np.float32)}


def params():
    return {"v": jnp.zeros((40, 48)), "w": jnp.zeros((D, 96))}


def loss(params, batch, prng):
    reached = (batch["x"] @ params["w"]).mean() * jnp.float32(0.01)
    return reached + (params["v"] * params["v"]).sum() * jnp.float32(1e-3), {}


def trainer(config, seed=3, **changed):
    fields = {"config": config.make(secrets=PlanSecrets.for_tests(seed)), "loss_fn": loss}
    return Trainer(**fields | {"optimizer": optax.sgd(0.1)} | changed)


def audited(config, seed=3, *, canaries=CANARIES, folder=None, attack="every step", **changed):
    """The audit of a trainer with the seeds of a test, the same at every call.

    Users have three records each. Monte Carlo accounting takes minutes at small deltas.
    """
    users = np.arange(3 * N) % N if config.unit == "user" else None
    return audit(
        trainer(config, seed, **changed),
        data() if users is None else data(len(users)),
        params(),
        canaries=canaries,
        attack=attack,
        delta=LARGE_DELTA if config is BALLS_IN_BINS else DELTA,
        user_ids=users,
        seed=seed,
        folder=folder,
        options=OPTIONS,
    )
