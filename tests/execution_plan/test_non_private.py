"""The baseline: mean gradients without noise, and no privacy."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.execution_plan import NonPrivateConfig, PlanSecrets


def test_it_gives_the_gradient_of_the_mean_loss():
    plan = NonPrivateConfig(iterations=3, batch_size=4).make(secrets=PlanSecrets.for_tests(0))
    data = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)

    def loss(w, x):
        return jnp.mean((x @ w - 1.0) ** 2)

    w = jnp.ones(2)
    batch = data[plan.batch(1, 9)]
    noise = plan.noise_addition_transform
    found, _ = noise.update(plan.clipped_grad(loss)(w, batch), noise.init(w), prng_key=None)
    np.testing.assert_allclose(found, jax.grad(loss)(w, batch), rtol=1e-5)


def test_its_epsilon_is_infinite():
    plan = NonPrivateConfig(iterations=3, batch_size=4).make()
    assert plan.dp_event == dp_accounting.NonPrivateDpEvent()
    assert plan.epsilon(1, delta=1e-3) == math.inf
    assert plan.padded_sizes().sizes == (4,)
    assert "nothing is protected" in str(plan)


@pytest.mark.parametrize("sizes", [(0, 4), (3, 0), (3, 1.5)])
def test_bad_sizes_are_refused(sizes):
    with pytest.raises(FixArgumentsError, match="an integer"):
        NonPrivateConfig(*sizes)
