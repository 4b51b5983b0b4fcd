"""The oracle against linear regression worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import clipped_sum

# One weight vector w = (1, 2), residual r = x . w - y, loss r^2 / 2: the gradient is r x.
W = jnp.array([1.0, 2.0])
BATCH = {
    "x": jnp.array([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]),
    "y": jnp.array([10.0, 0.5, 2.0, 2.5]),
}
# r = (1, 0.5, 0, -0.5); gradients (3, 4), (0.5, 0), (0, 0), (-1, 0); norms 5, 0.5, 0, 1.
NORMS = np.array([5.0, 0.5, 0.0, 1.0])


def loss(w, batch):
    return jnp.mean((batch["x"] @ w - batch["y"]) ** 2) / 2


def test_sum_of_clipped_gradients_is_the_one_by_hand():
    got = clipped_sum(loss, W, BATCH, clip_norm=1.0)
    np.testing.assert_allclose(got.grad, [0.6 + 0.5 - 1.0, 0.8], rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(got.norms, NORMS, rtol=1e-15)
    np.testing.assert_allclose(got.values, [0.5, 0.125, 0.0, 0.125], rtol=1e-15)
    assert got.aux is None
    assert got.grad.dtype == got.norms.dtype == got.values.dtype == np.float64


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"clip_norm": np.inf}, [2.5, 4.0]),
        ({"clip_norm": 0.0}, [0.0, 0.0]),
        ({"clip_norm": 2.5, "rescale": True}, [0.6 + 0.2 - 0.4, 0.8]),
        ({"clip_norm": 0.0, "rescale": True}, [0.6 + 1.0 - 1.0, 0.8]),
        ({"clip_norm": 1.0, "normalize_by": 4.0}, [0.1 / 4, 0.2]),
        ({"clip_norm": 3.0, "gamma": 1.0}, [1.5 + 1.0 - 1.5, 2.0]),
        ({"clip_norm": 1.0, "padding": [True, False, False, False]}, [-0.5, 0.0]),
        ({"clip_norm": 1.0, "transform": lambda g: 4 * g}, [0.6 + 1.0 - 1.0, 0.8]),
    ],
)
def test_options_mean_what_they_say(options, expected):
    got = clipped_sum(loss, W, BATCH, **options)
    np.testing.assert_allclose(got.grad, expected, rtol=1e-14, atol=1e-15)


def test_groups_are_clipped_by_their_own_norms():
    params = {"w": W, "b": jnp.array([0.0])}  # the gradient of b is r

    def with_bias(params, batch):
        return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2) / 2

    got = clipped_sum(with_bias, params, BATCH, clip_norm={"w": 1.0, "b": 0.25})
    np.testing.assert_allclose(got.grad["w"], [0.1, 0.8], rtol=1e-14)
    np.testing.assert_allclose(got.grad["b"], [0.25 + 0.25 - 0.25], rtol=1e-15)
    np.testing.assert_allclose(got.norms["w"], NORMS, rtol=1e-15)
    np.testing.assert_allclose(got.norms["b"], [1.0, 0.5, 0.0, 0.5], rtol=1e-15)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_example_contributes_zero_and_reports_its_norm(bad):
    batch = BATCH | {"y": BATCH["y"].at[0].set(bad)}
    got = clipped_sum(loss, W, batch, clip_norm=1.0)
    np.testing.assert_allclose(got.grad, [-0.5, 0.0], rtol=1e-15)
    assert not np.isfinite(got.norms[0])


def test_aux_and_examples_without_a_batch_dimension():
    def one(w, x, y):
        r = jnp.dot(x, w) - y
        return r**2 / 2, {"residual": r}

    got = clipped_sum(
        one,
        W,
        BATCH["x"],
        BATCH["y"],
        clip_norm=1.0,
        has_aux=True,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
    )
    np.testing.assert_allclose(got.grad, [0.1, 0.8], rtol=1e-14)
    np.testing.assert_allclose(got.aux["residual"], [1.0, 0.5, 0.0, -0.5])


def test_gradients_of_several_arguments_share_one_norm():
    def two(a, b, batch):
        return loss(jnp.concatenate([a, b]), batch)

    got = clipped_sum(two, W[:1], W[1:], BATCH, clip_norm=1.0, argnums=(0, 1), batch_argnums=2)
    np.testing.assert_allclose(np.concatenate(got.grad), [0.1, 0.8], rtol=1e-14)


def test_every_example_has_its_own_key():
    def noisy(w, batch, key):
        return loss(w, batch) * jax.random.uniform(key, (), jnp.float32).astype(w.dtype)

    key = jax.random.key(3)
    got = clipped_sum(noisy, W, BATCH, key, clip_norm=np.inf, prng_argnum=2)
    draws = [jax.random.uniform(jax.random.fold_in(key, i), (), jnp.float32) for i in range(4)]
    np.testing.assert_allclose(got.norms, NORMS * np.asarray(draws, np.float64), rtol=1e-14)


def test_low_precision_parameters_are_widened_before_the_gradient():
    w = W.astype(jnp.bfloat16)
    got = clipped_sum(loss, w, jax.tree.map(lambda x: x.astype(jnp.bfloat16), BATCH), clip_norm=1.0)
    np.testing.assert_allclose(got.grad, [0.1, 0.8], rtol=1e-14)
