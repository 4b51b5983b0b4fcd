"""The loss of one unit of privacy. The gradients are checked in test_trainer.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError, FixLossError
from bevel.training.contribution import Augmentation, averaged, contribution


def loss(params, data, prng):
    value = (params["w"] * data["x"]).sum() + jax.random.uniform(prng)
    return value, {"x": data["x"][0], "kind": jnp.int32(3), "yes": data["x"][0] > 0}


def test_an_example_is_the_loss_itself():
    key, data = jax.random.key(0), {"x": jnp.ones(1)}
    made = contribution(loss, by_user=False, augmentation=None)
    value, aux = made({"w": jnp.float32(2)}, ({"w": None}, None), (data, None), key)
    assert value == loss({"w": jnp.float32(2)}, data, key)[0] and aux["x"] == 1


def test_views_differ_and_are_averaged():
    seen = Augmentation(lambda data, key: {"x": jax.random.normal(key, (1,))}, views=16)
    made = contribution(loss, by_user=False, augmentation=seen)
    value, aux = made(
        {"w": jnp.float32(1)}, ({"w": None}, None), ({"x": jnp.ones(1)}, None), jax.random.key(0)
    )
    assert abs(float(aux["x"])) < 1 and float(value) != float(aux["x"])
    assert aux["kind"].shape == (16,) and 0 < float(aux["yes"]) < 1
    with pytest.raises(FixArgumentsError, match="views=0"):
        Augmentation(seen.augment, views=0)


def test_a_user_is_the_mean_of_what_is_there():
    def at_zero(params, data, prng):
        # Not differentiable at zeros, which padding consists of.
        return params["w"] * jnp.sqrt((data["x"] ** 2).sum()), {}

    made = contribution(at_zero, by_user=True, augmentation=None)
    data = {"x": jnp.asarray([[3.0], [5.0], [0.0]])}
    missing = jnp.asarray([False, False, True])
    gradient = jax.grad(
        lambda w: made({"w": w}, ({"w": None}, None), (data, missing), jax.random.key(0))[0]
    )
    assert float(gradient(jnp.float32(1.0))) == pytest.approx(4.0)


def test_a_loss_of_another_form_is_refused():
    made = contribution(lambda p, d, k: d, by_user=False, augmentation=None)
    with pytest.raises(FixLossError, match=r"must return a pair \(loss, aux\)"):
        made({}, ({}, None), (jnp.ones(1), None), jax.random.key(0))
    made = contribution(lambda p, d, k: (d, {}), by_user=False, augmentation=None)
    with pytest.raises(FixLossError, match=r"shape \(1,\)"):
        made({}, ({}, None), (jnp.ones(1), None), jax.random.key(0))
    made = contribution(lambda p, d, k: (d.sum(), {"a": "b"}), by_user=False, augmentation=None)
    with pytest.raises(FixLossError, match="aux contains a str at 'a'"):
        made({}, ({}, None), (jnp.ones(1), None), jax.random.key(0))


def test_averages_are_over_the_leading_axis():
    found = averaged({"a": jnp.asarray([[1.0, 2.0], [3.0, 4.0]])}, jnp.asarray([0.25, 0.75]))
    np.testing.assert_allclose(found["a"], [2.5, 3.5])
