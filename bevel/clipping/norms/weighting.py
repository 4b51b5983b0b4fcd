"""Coefficients times values, on the way into the sum over the batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms.scaling import power_of_two, scale_to_one
from bevel.sharding.types import on_one_device

# From so many on, sums of rows are worth the matrix units of a GPU.
MANY_ROWS, MANY_NUMBERS = 256, 2**22


def chosen(keep: jax.Array | None, x: jax.Array) -> jax.Array:
    """`x` with unwanted examples replaced by zeros: selected, for 0 times inf is NaN."""
    if keep is None or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return _selected(keep, x)


@jax.jit  # traced once for all arrays of one shape
def _selected(keep: jax.Array, x: jax.Array) -> jax.Array:
    keep = jnp.expand_dims(keep, tuple(range(keep.ndim, x.ndim)))
    return jnp.where(keep, x, jnp.zeros_like(x))


def weighted(
    multiplier: precision.Multiplier, x: jax.Array, other: jax.Array, factor: jax.Array, keep: Any
) -> tuple[jax.Array, jax.Array]:
    """`x` times the coefficients, in the dtype of the operands, and `other` as it is.

    Unwanted examples are zero in both.
    """
    wide = precision.accumulation_dtype(x.dtype, factor.dtype)
    values = multiplier.operand(chosen(keep, x)).astype(wide)
    factors, other = [factor.astype(wide)], chosen(keep, other)
    if keep is not None and jnp.issubdtype(other.dtype, jnp.floating):
        # Nothing is known of the range: a power of two that brings `other` near 1 goes over to
        # `x`, so that what is too small for a float there is small in the sum as well.
        other, exponent = scale_to_one(multiplier.operand(other))
        other, half = other.astype(multiplier.dtype), exponent // 2
        factors = [power_of_two(half, wide), *factors, power_of_two(exponent - half, wide)]
    for one in factors:
        values = values * jnp.expand_dims(one, tuple(range(1, x.ndim)))
    values = chosen(factor != 0, values)  # what overflowed has no coefficient
    narrow = values.astype(multiplier.dtype)
    # Near zero a rounding has no small relative error.
    tiny = jnp.abs(values) < float(jnp.finfo(narrow.dtype).smallest_normal)
    return jnp.where(tiny, jnp.zeros_like(narrow), narrow), other


@jax.jit
def weighted_rows(factor: jax.Array, x: jax.Array) -> jax.Array:
    """`sum_b factor[b] * x[b]`, the products exact or rounded once, in float32 or wider."""
    dtype = precision.accumulation_dtype(x.dtype, factor.dtype)
    over = (((1,), (0,)), ((), ()))
    many = x.shape[0] >= MANY_ROWS and x.size >= MANY_NUMBERS
    if x.dtype == jnp.bfloat16 and dtype == np.dtype(np.float32) and on_gpu() and many:
        # A matrix unit reads x as it is: 24 bits of a factor are three times 8.
        parts = jnp.stack(in_parts(factor.astype(dtype)))
        return jnp.sum(jax.lax.dot_general(parts, x, over, preferred_element_type=dtype), axis=0)
    if on_gpu():
        return jnp.sum(jax.vmap(jnp.multiply)(factor.astype(dtype), x.astype(dtype)), axis=0)
    rows = factor.astype(dtype)[None]
    highest = jax.lax.Precision.HIGHEST
    return jax.lax.dot_general(rows, x.astype(dtype), over, precision=highest)[0]


@jax.jit
def weighted_rows_of(keep: jax.Array, factor: jax.Array, x: jax.Array) -> jax.Array:
    """The same sum over the examples to keep; the others may be anything but a number."""
    dtype = precision.accumulation_dtype(x.dtype, factor.dtype)
    factor = factor.astype(dtype)
    if jax.default_backend() == "cpu" and on_one_device() and x.size >= 2**13:
        # Row by row a CPU reads each number once, and makes no copy.
        row = lambda i: _selected(keep[i], factor[i] * x[i].astype(dtype))  # noqa: E731
        return jax.lax.fori_loop(1, x.shape[0], lambda i, total: total + row(i), row(0))
    return jnp.sum(jax.vmap(jnp.multiply)(factor, _selected(keep, x).astype(dtype)), axis=0)


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def in_parts(x: jax.Array) -> list[jax.Array]:
    """float32 numbers as sums of three in bfloat16, none of them past zero or past x."""
    parts = []
    for _ in range(3):
        bits = jax.lax.bitcast_convert_type(x, np.uint32) & np.uint32(0xFFFF0000)
        part = jax.lax.bitcast_convert_type(bits, np.float32)
        parts.append(part.astype(jnp.bfloat16))
        x = x - part
    return parts
