"""One step: its parts, one after the other, are the step; what is not trained does not move."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from compare import assert_close

import bevel
from bevel.execution_plan import PlanSecrets
from bevel.training import Trainer

PARAMS = {"w": np.ones((3, 2), np.float32), "frozen": np.full((2,), 2.0, np.float32)}
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def loss(params, data, prng):
    del prng
    return jnp.mean((data @ params["w"] + params["frozen"][None]) ** 2), {}


def trainer(**options):
    config = bevel.DPSGDConfig(
        noise_multiplier=1.0, iterations=5, num_examples=40, expected_batch_size=4
    )
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    return Trainer(config=plan, loss_fn=loss, optimizer=optax.sgd(0.1), **options)


def taken(one, state):
    keys = jax.random.key(1), one.plan.secrets.noise_key
    return one.step(state, (X, None), jnp.zeros(4, bool), *keys)


def test_a_step_is_clip_then_noise_then_update():
    one = trainer()
    state = one.init(PARAMS)
    new, _, sums = taken(one, state)
    clipped, _ = one.step.clip(state, (X, None), jnp.zeros(4, bool), jax.random.key(1))
    noised, _ = one.step.add_noise(clipped, state, one.plan.secrets.noise_key)
    params, _ = one.step.update(noised, state)
    assert_close(sums, clipped, 1e-6)
    assert_close(new.params, params, 1e-6)
    assert int(new.step) == 1
    assert not np.allclose(noised["w"], clipped["w"])


def test_frozen_parameters_have_no_gradient_and_do_not_move():
    one = trainer(trainable=["w"])
    new, _, sums = taken(one, one.init(PARAMS))
    assert jax.tree.leaves(sums)[0].shape == (3, 2) and len(jax.tree.leaves(sums)) == 1
    np.testing.assert_array_equal(new.params["frozen"], PARAMS["frozen"])
    assert not np.array_equal(new.params["w"], PARAMS["w"])


def test_the_average_moves_towards_the_new_parameters():
    one = trainer(ema_decay=0.9)
    state = one.init(PARAMS)
    new, _, _ = taken(one, state)
    expected = jax.tree.map(lambda a, b: a + 0.9 * (b - a), state.average, new.params)
    assert_close(new.average, expected, 1e-6)  # at step 0 the decay is 1 / 10
