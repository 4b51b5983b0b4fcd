"""Scaling by powers of two loses nothing."""

import jax.numpy as jnp
import numpy as np
import pytest

from bevel.clipping.norms.scaling import exponent, power_of_two, scale_back, scale_to_one

TINY = float(np.finfo(np.float32).tiny)


@pytest.mark.parametrize("top", [TINY, 1e-30, 0.1, 1.0, np.nextafter(2, 1), 3e38])
def test_scaling_is_exact(top):
    rng = np.random.default_rng(0)
    x = (top * rng.uniform(-1, 1, size=(4, 30))).astype(np.float32)
    x[:, 0] = top
    x[np.abs(x) < TINY] = 0
    scaled, e = map(np.asarray, scale_to_one(jnp.asarray(x)))
    largest = np.max(np.abs(scaled), axis=1)
    assert np.all((largest >= 1) & (largest < 4))
    # A product that stays normal is exact; the others are below 2^-126 of the largest entry.
    back = np.ldexp(scaled.astype(np.float64), e[:, None])
    kept_entries = np.abs(x) >= TINY * top
    np.testing.assert_array_equal(back[kept_entries], x.astype(np.float64)[kept_entries])


def test_rows_are_scaled_one_by_one():
    x = np.float32([[1e30, 2e30], [1e-30, 0], [0, 0], [1, -7]])
    scaled, e = map(np.asarray, scale_to_one(jnp.asarray(x)))
    np.testing.assert_array_equal(np.ldexp(scaled.astype(np.float64), e[:, None]), x)


def test_any_axes_may_be_scaled_together():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4, 5)), jnp.float32)
    scaled, e = scale_to_one(x, axes=(1, 3))
    assert e.shape == (2, 4)
    back = np.ldexp(np.asarray(scaled, np.float64), np.asarray(e)[:, None, :, None])
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("e", [-252, -130, -1, 0, 7, 251])
def test_scaling_back_reaches_twice_the_range_of_one_float(e):
    start = 2.0 ** min(max(-e, -126), 126)
    got = scale_back(jnp.float32(start), jnp.int32(e))
    assert float(got) == start * 2.0**e


@pytest.mark.parametrize("value", [1.0, 1.5, 0.75, 2.0**-126, 3e38, 0.0])
def test_exponents_and_powers_are_inverse(value):
    e = exponent(jnp.float32(value))
    power = float(power_of_two(e, jnp.float32))
    assert power <= max(value, 2.0**-126)
    assert value < 4 * power
