"""Multiplies values by the coefficients of their examples, and sums them over the batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms.scaling import power_of_two, scale_to_one
from bevel.sharding.types import on_one_device

# Sums of at least this many rows and entries are faster on a GPU's matrix units.
MANY_ROWS, MANY_ENTRIES = 256, 2**22


def mask_examples(keep: jax.Array | None, x: jax.Array) -> jax.Array:
    """Sets excluded examples to zero. They are selected, because 0 times inf is NaN."""
    if keep is None or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return _selected(keep, x)


@jax.jit  # traced once for all arrays of one shape
def _selected(keep: jax.Array, x: jax.Array) -> jax.Array:
    keep = jnp.expand_dims(keep, tuple(range(keep.ndim, x.ndim)))
    return jnp.where(keep, x, jnp.zeros_like(x))


def weighted(
    matmul: precision.MatmulPrecision, x: jax.Array, other: jax.Array, factor: jax.Array, keep: Any
) -> tuple[jax.Array, jax.Array]:
    """Both operands of a product: `x` times the coefficients, and `other`.

    Excluded examples are zero in both.
    """
    wide = precision.accumulation_dtype(x.dtype, factor.dtype)
    values = matmul.operand(mask_examples(keep, x)).astype(wide)
    factors, other = [factor.astype(wide)], mask_examples(keep, other)
    indices = not jnp.issubdtype(other.dtype, jnp.floating)
    other = other if indices else matmul.operand(other)
    if keep is not None and not indices:
        # The range is unknown: a power of two moves from `other` to `x`, which brings `other` near
        # 1. Entries of `other` that underflow are then negligible in the sum as well.
        other, exponent = scale_to_one(other)
        other, half = other.astype(matmul.dtype), exponent // 2
        factors = [power_of_two(half, wide), *factors, power_of_two(exponent - half, wide)]
    for one in factors:
        values = values * jnp.expand_dims(one, tuple(range(1, x.ndim)))
    values = mask_examples(factor != 0, values)  # 0 times inf is NaN
    narrow = matmul.scaled_operand(values)
    # Subnormal values would be rounded with a large relative error.
    tiny = jnp.abs(values) < float(jnp.finfo(narrow.dtype).smallest_normal)
    return jnp.where(tiny, jnp.zeros_like(narrow), narrow), other


@jax.jit
def weighted_rows(factor: jax.Array, x: jax.Array) -> jax.Array:
    """`sum_b factor[b] * x[b]` in float32 or wider, each product exact or rounded once."""
    dtype = precision.accumulation_dtype(x.dtype, factor.dtype)
    over = (((1,), (0,)), ((), ()))
    many = x.shape[0] >= MANY_ROWS and x.size >= MANY_ENTRIES
    if x.dtype == jnp.bfloat16 and dtype == np.dtype(np.float32) and on_gpu() and many:
        # Matrix units read bfloat16 directly: the 24 bits of a factor are three parts of 8 bits.
        parts = jnp.stack(bfloat16_parts(factor.astype(dtype)))
        return jnp.sum(jax.lax.dot_general(parts, x, over, preferred_element_type=dtype), axis=0)
    if on_gpu():
        return jnp.sum(jax.vmap(jnp.multiply)(factor.astype(dtype), x.astype(dtype)), axis=0)
    rows = factor.astype(dtype)[None]
    highest = jax.lax.Precision.HIGHEST
    return jax.lax.dot_general(rows, x.astype(dtype), over, precision=highest)[0]


@jax.jit
def weighted_rows_of(keep: jax.Array, factor: jax.Array, x: jax.Array) -> jax.Array:
    """As `weighted_rows`, over the examples in `keep`. Excluded rows may be NaN or inf."""
    dtype = precision.accumulation_dtype(x.dtype, factor.dtype)
    factor = factor.astype(dtype)
    if jax.default_backend() == "cpu" and on_one_device() and x.size >= 2**13:
        # Row by row, a CPU reads each entry once and makes no copy.
        row = lambda i: _selected(keep[i], factor[i] * x[i].astype(dtype))  # noqa: E731
        return jax.lax.fori_loop(1, x.shape[0], lambda i, total: total + row(i), row(0))
    return jnp.sum(jax.vmap(jnp.multiply)(factor, _selected(keep, x).astype(dtype)), axis=0)


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def bfloat16_parts(x: jax.Array) -> list[jax.Array]:
    """float32 values as sums of three bfloat16 values of its sign, none larger in magnitude."""
    parts = []
    for _ in range(3):
        bits = jax.lax.bitcast_convert_type(x, np.uint32) & np.uint32(0xFFFF0000)
        part = jax.lax.bitcast_convert_type(bits, np.float32)
        parts.append(part.astype(jnp.bfloat16))
        x = x - part
    return parts
