"""Coefficients times values: rounded once, zero for excluded examples, never subnormal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel import precision
from bevel.clipping.norms import weighting
from bevel.clipping.norms.weighting import bfloat16_parts, mask_examples, weighted, weighted_rows

TINY = 2.0**-126  # the smallest normal number of float32 and of bfloat16
DTYPES = ("float16", "bfloat16", "float32", "float64")


def apply(x, other, factor, keep=None, dtype=None, multiplier=None):
    multiplier = multiplier or precision.matmul_precision(dtype or x.dtype)
    return jax.jit(lambda *args: weighted(multiplier, *args))(x, other, factor, keep)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_rounded_once_to_what_is_multiplied(dtype):
    with jax.enable_x64(dtype == "float64"):
        rng, wide = np.random.default_rng(0), precision.accumulation_dtype(dtype)
        x = rng.normal(size=(3, 4, 5)).astype(jnp.dtype(dtype))
        other = rng.normal(size=(3, 4)).astype(jnp.dtype(dtype))
        factor = rng.uniform(0.1, 1, size=3).astype(wide)
        values, untouched = apply(jnp.asarray(x), jnp.asarray(other), jnp.asarray(factor))
    multiplier = precision.matmul_precision(dtype)
    assert values.dtype == wide and untouched.dtype == multiplier.dtype
    np.testing.assert_array_equal(np.asarray(untouched), other)
    expected = x.astype(wide) * factor[:, None, None]
    np.testing.assert_array_equal(np.asarray(values), expected.astype(values.dtype))


def test_on_an_accelerator_the_scaled_operand_keeps_its_dtype(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    multiplier = precision.matmul_precision("bfloat16")
    monkeypatch.undo()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.bfloat16)
    factor = np.float32([0.3, 0.5, 0.7])
    values, _ = apply(x, x, factor, multiplier=multiplier)
    assert values.dtype == jnp.bfloat16 and multiplier.roundoff == 2.0**-8
    expected = np.asarray(x, np.float32) * factor[:, None]
    np.testing.assert_array_equal(np.asarray(values), expected.astype(jnp.bfloat16))


def test_a_wide_coefficient_is_not_rounded_first():
    with jax.enable_x64(True):
        factor = jnp.asarray([1 + 2.0**-40], jnp.float64)
        values, _ = apply(jnp.ones((1, 2)), jnp.ones((1, 2)), factor, None, "float64")
    assert values.dtype == np.float64 and np.all(np.asarray(values) == 1 + 2.0**-40)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_unwanted_examples_are_zero_whatever_they_hold(value, dtype):
    x, other = (np.ones(shape, jnp.dtype(dtype)) for shape in ((4, 2, 3), (4, 5)))
    x[0] = x[2, 1, 1] = other[1, 0] = value
    factor = np.array([1, 0, 1, 0.5], np.float32)
    found = apply(x, other, factor, np.array([False, False, False, True]))
    for got, kept in zip(found, (0.5, 1), strict=True):
        rows = np.asarray(got, np.float64).reshape(4, -1)
        assert not np.any(rows[:3]) and np.all(rows[3] == kept)


def test_wanted_examples_keep_what_is_not_finite():
    x = jnp.ones((2, 3)).at[1, 0].set(np.nan)
    values, second = apply(x, x, jnp.ones(2), jnp.asarray([True, True]))
    for found in (values, second):
        assert np.isnan(found).tolist() == [[False] * 3, [True, False, False]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("sign", [1, -1])
def test_subnormal_results_are_zero(dtype, sign):
    # 2^-100 times these: far below, just below (where bfloat16 would round up), at, and above.
    factor = jnp.asarray([2.0**-30, 2.0**-26 * (1 - 2.0**-12), 2.0**-26, 2.0**-25], jnp.float32)
    x = jnp.full((4, 2), sign * 2.0**-100, dtype)
    values, _ = apply(x, x, factor)
    expected = np.array([0, 0, TINY, 2 * TINY]) * sign
    np.testing.assert_array_equal(np.asarray(values, np.float64), np.tile(expected[:, None], 2))


def test_integers_and_keys_pass():
    """Indices of one-hot vectors are masked too. Keys have no zero and are left unchanged."""
    places, keep = jnp.asarray([[1, 2], [3, 4]]), jnp.asarray([True, False])
    assert mask_examples(keep, places).tolist() == [[1, 2], [0, 0]]
    keys = jax.random.split(jax.random.key(0), 2)
    assert mask_examples(keep, keys) is keys and mask_examples(None, places) is places


def test_three_parts_make_up_a_factor_and_never_pass_it():
    x = np.random.default_rng(0).uniform(0.5, 1, size=1000).astype(np.float32)
    x = np.concatenate([x, x * np.float32(2.0**-118), [0, 1, 2.0**-126]]).astype(np.float32)
    parts = [np.asarray(p) for p in bfloat16_parts(jnp.asarray(x))]
    assert all(p.dtype == jnp.bfloat16 for p in parts)
    total = sum(p.astype(np.float64) for p in parts)
    assert np.all(total <= x) and np.all(x[:1000] == total[:1000])
    assert np.all(total >= x * (1 - 2.0**-7))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_rows_are_weighted_in_full(dtype, platform, monkeypatch):
    monkeypatch.setattr(weighting, "on_gpu", lambda: platform == "gpu")
    monkeypatch.setattr(weighting, "MANY_ROWS", 2)
    monkeypatch.setattr(weighting, "MANY_ENTRIES", 2)
    with jax.enable_x64(dtype == "float64"):
        rng, wide = np.random.default_rng(1), precision.accumulation_dtype(dtype)
        x = rng.normal(size=(6, 3, 2)).astype(jnp.dtype(dtype))
        factor = rng.uniform(0, 1, size=6).astype(wide)
        found = weighted_rows(jnp.asarray(factor), jnp.asarray(x))
    assert found.dtype == wide and found.shape == (3, 2)
    exact = np.tensordot(factor.astype(np.float64), x.astype(np.float64), 1)
    size = np.tensordot(factor.astype(np.float64), np.abs(x).astype(np.float64), 1)
    assert np.all(np.abs(np.asarray(found, np.float64) - exact) <= size * 32 * np.finfo(wide).eps)
