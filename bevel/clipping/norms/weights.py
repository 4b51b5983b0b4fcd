"""Coefficients times values, on the way into the sum over the batch."""

from typing import Any

import jax
import jax.numpy as jnp

from bevel import precision


def chosen(keep: jax.Array | None, x: jax.Array) -> jax.Array:
    """`x` with unwanted examples replaced by zeros: selected, for 0 times inf is NaN."""
    if keep is None or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    keep = jnp.expand_dims(keep, tuple(range(1, x.ndim)))
    return jnp.where(keep, x, jnp.zeros_like(x))


def weighted(
    multiplier: precision.Multiplier, x: jax.Array, other: jax.Array, factor: jax.Array, keep: Any
) -> tuple[jax.Array, jax.Array]:
    """`x` times the coefficients, in the dtype of the operands, and `other` as it is.

    Unwanted examples are zero in both.
    """
    wide = precision.accumulation_dtype(x.dtype, factor.dtype)
    values = jnp.expand_dims(factor.astype(wide), tuple(range(1, x.ndim)))
    values = values * multiplier.operand(chosen(keep, x)).astype(wide)
    narrow = values.astype(multiplier.dtype)
    # Near zero a rounding has no small relative error.
    tiny = jnp.abs(values) < float(jnp.finfo(narrow.dtype).smallest_normal)
    return jnp.where(tiny, jnp.zeros_like(narrow), narrow), chosen(keep, other)
