"""A privatizer is an optax transformation with a record of its noise."""

import jax
import numpy as np
import optax

from bevel.noise_addition import gaussian_privatizer
from bevel.noise_addition.privatizer import NoiseRecord, Privatizer

PARAMS = {"w": np.ones((4, 8), np.float32)}


def test_it_is_an_optax_transformation_with_a_record():
    privatizer = gaussian_privatizer(stddev=2.0, prng_key=5)
    assert isinstance(privatizer, Privatizer)
    assert isinstance(privatizer, optax.GradientTransformationExtraArgs)
    assert privatizer.record == NoiseRecord("gaussian", 2.0, "chacha20", key_is_secret=False)
    init, update = privatizer
    assert (init, update) == (privatizer.init, privatizer.update)


def test_it_chains_with_other_transformations_under_jit_with_donation():
    privatizer = gaussian_privatizer(stddev=2.0, prng_key=5)
    chain = optax.chain(privatizer, optax.scale(-0.5), optax.trace(0.9))
    state = chain.init(PARAMS)
    step = jax.jit(chain.update, donate_argnums=1)
    updates, state = step(PARAMS, state, PARAMS)
    noised, _ = privatizer.update(PARAMS, privatizer.init(PARAMS))
    np.testing.assert_allclose(updates["w"], -0.5 * noised["w"], rtol=1e-6)
    updates, state = step(PARAMS, state)
    assert int(state[0].step) == 2


def test_the_names_of_the_arguments_are_those_of_jax_privacy():
    privatizer = gaussian_privatizer(stddev=2.0, prng_key=5)
    state = privatizer.init(PARAMS)
    noised, _ = privatizer.update(sum_of_clipped_grads=PARAMS, noise_state=state)
    assert noised["w"].shape == (4, 8)


def test_extra_arguments_of_other_transformations_are_ignored():
    privatizer = gaussian_privatizer(stddev=2.0, prng_key=5)
    noised, _ = privatizer.update(PARAMS, privatizer.init(PARAMS), None, value=3.0)
    assert noised["w"].shape == (4, 8)
