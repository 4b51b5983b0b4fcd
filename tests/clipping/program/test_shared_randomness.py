"""Masks that all examples share are found; keys of examples and fixed projections are not."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from bevel.clipping.program.shared_randomness import SharedMask, find_shared_mask

W, X, KEY, FIXED = jnp.ones((4, 4)), jnp.ones((1, 4)), jax.random.key(0), jax.random.key(1)


def dropped(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0.0)


def layers(x, keys):
    return jax.lax.scan(lambda h, key: (dropped(jnp.tanh(h), key), None), x, keys)[0]


SHARED = {
    "constant": lambda w, x, key: dropped(x @ w, FIXED).sum(),
    "made inside": lambda w, x, key: dropped(x @ w, jax.random.key(0)).sum(),
    "folded": lambda w, x, key: dropped(x @ w, jax.random.fold_in(FIXED, 7)).sum(),
    "in jit": lambda w, x, key: jax.jit(dropped)(x @ w, FIXED).sum(),
    "in checkpoint": lambda w, x, key: jax.checkpoint(dropped)(x @ w, FIXED).sum(),
    "in scan": lambda w, x, key: layers(x @ w, jax.random.split(FIXED, 3)).sum(),
    "in cond": lambda w, x, key: jax.lax.cond(w.sum() > 0, dropped, lambda x, k: x, x, FIXED).sum(),
    "raw key": lambda w, x, key: dropped(x @ w, jax.random.PRNGKey(0)).sum(),
}
OWN = {
    "key of the example": lambda w, x, key: dropped(x @ w, key).sum(),
    "folded with the example": lambda w, x, key: dropped(
        x @ w, jax.random.fold_in(FIXED, x.sum().astype(int))
    ).sum(),
    "in scan": lambda w, x, key: layers(x @ w, jax.random.split(key, 3)).sum(),
    "noise of the example": lambda w, x, key: (x @ w + jax.random.normal(key, x.shape)).sum(),
    "fixed projection": lambda w, x, key: jnp.cos(x @ jax.random.normal(FIXED, (4, 4)) @ w).sum(),
    "relu": lambda w, x, key: jnp.where(x > 0, x, 0.0).sum(),
    "mask of a parameter": lambda w, x, key: (x @ dropped(w, FIXED)).sum(),
}


def found(loss):
    return find_shared_mask(jax.make_jaxpr(loss)(W, X, KEY), [1, 2])


@pytest.mark.parametrize("loss", SHARED.values(), ids=SHARED.keys())
def test_shared_masks_are_found(loss):
    assert "test_shared_randomness.py:" in str(found(loss))
    assert str(SharedMask(None)) == ""


@pytest.mark.parametrize("loss", OWN.values(), ids=OWN.keys())
def test_other_randomness_raises_no_alarm(loss):
    assert found(loss) is None


def test_the_line_is_that_of_the_call_of_a_library():
    def loss(w, x, key):
        mask = jax.random.bernoulli(FIXED, 0.5, x.shape)
        return jnp.where(mask, x @ w, 0.0).sum()

    assert f"test_shared_randomness.py:{inspect.getsourcelines(loss)[1] + 2}" in str(found(loss))


def test_a_form_that_is_not_expected_raises_nothing(monkeypatch):
    monkeypatch.setattr("bevel.clipping.program.shared_randomness.PASSES", 0)
    assert found(SHARED["in scan"]) is None
