"""The dtype of every stage, and bounds on rounding that hold."""

import jax.numpy as jnp
import numpy as np
import pytest

from bevel import clipped_grad, precision

LOW = ["bfloat16", "float16", "float32"]


@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_is_accumulated_in_float32(dtype):
    assert precision.accumulation_dtype(dtype) == np.float32
    assert precision.accumulation_dtype(jnp.dtype(dtype), "bfloat16") == np.float32


def test_one_float64_widens_all():
    assert precision.accumulation_dtype("float64") == np.float64
    assert precision.accumulation_dtype("bfloat16", np.float64, "float32") == np.float64


def test_nothing_is_accumulated_in_float32():
    assert precision.accumulation_dtype() == np.float32


@pytest.mark.parametrize(
    "dtype, bits", [("bfloat16", 8), ("float16", 11), ("float32", 24), ("float64", 53)]
)
def test_one_rounding_is_off_by_half_a_unit(dtype, bits):
    assert precision.unit_roundoff(dtype) == 2.0**-bits


def test_growth_is_that_of_the_textbook():
    u = 2.0**-24
    assert precision.rounding_growth(0) == 0.0
    assert precision.rounding_growth(1) == u / (1 - u)
    assert precision.rounding_growth(100, "bfloat16") == pytest.approx(100 / 156)
    growths = [precision.rounding_growth(n) for n in range(0, 2**24, 2**20)]
    assert growths == sorted(growths)


@pytest.mark.parametrize("terms", [256, 257, 1e9])
def test_growth_without_a_bound_is_infinite(terms):
    assert precision.rounding_growth(terms, "bfloat16") == float("inf")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_growth_bounds_the_error_of_a_sum(dtype):
    values = np.random.default_rng(0).uniform(size=500).astype(dtype)
    total = np.zeros((), dtype)
    for value in values:
        total = (total + value).astype(dtype)
    exact = values.astype(np.float64).sum()
    assert abs(float(total) - exact) <= precision.rounding_growth(500, dtype) * exact


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_stages_of_a_real_call_have_the_dtypes_of_the_table(dtype):
    def loss(w, x):
        return jnp.mean((x @ w) ** 2)

    fn = clipped_grad(loss, l2_clip_norm=1.0, return_values=True, return_grad_norms=True)
    grad, aux = fn(jnp.ones(2, dtype), jnp.ones((3, 2), dtype))
    assert aux.values.dtype == dtype  # the model's own
    assert aux.grad_norms.dtype == grad.dtype == jnp.float32
