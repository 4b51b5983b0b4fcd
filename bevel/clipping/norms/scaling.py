"""Exact scaling by powers of two, so that no square overflows or underflows.

Functions of one number per example use `jit`, so they are traced once for all parameters.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision

# Smaller squares underflow.
SMALLEST_SQUARE = 2.0**-126


def scale_to_one(x: jax.Array, axes: Sequence[int] | None = None) -> tuple[jax.Array, jax.Array]:
    """Scales `x` by powers of two so that its largest entry over `axes` is near 1.

    Returns the scaled values and the exponents e, which have the other axes: x is the first result
    times 2**e. By default, `axes` is all axes but the first. Zeros get the smallest exponent.
    """
    x = x.astype(precision.accumulation_dtype(x.dtype))
    axes = tuple(range(1, x.ndim)) if axes is None else tuple(axes)
    e = exponent(jnp.max(jnp.abs(x), axis=axes))
    return x * jnp.expand_dims(power_of_two(-e, x.dtype), axes), e


def top_exponent(x: jax.Array) -> jax.Array:
    """The exponents (B,) of the largest entries of `x` (B, ...)."""
    top = jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)), initial=0)
    return exponent(top.astype(precision.accumulation_dtype(x.dtype)))


@jax.jit
def exponent(x: jax.Array) -> jax.Array:
    """e with |x| in [2^e, 2^(e+1)), clipped so that 2^e and 2^-e are normal numbers."""
    info = jnp.finfo(x.dtype)
    bits = jax.lax.bitcast_convert_type(jnp.abs(x), np.dtype(f"int{info.bits}"))
    limit = np.asarray(-info.minexp, bits.dtype)
    # `clamp` and not `clip`: one operation, of which every norm has several.
    return jax.lax.clamp(-limit, (bits >> info.nmant) - (info.maxexp - 1), limit).astype(np.int32)


@functools.partial(jax.jit, static_argnames="dtype")
def power_of_two(e: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """2^e, exactly, for an e in the range of `exponent`."""
    info = jnp.finfo(dtype)
    bits = (e.astype(np.dtype(f"int{info.bits}")) + (info.maxexp - 1)) << info.nmant
    return jax.lax.bitcast_convert_type(bits, np.dtype(dtype))


@jax.custom_jvp
def _smooth_root(x: jax.Array) -> jax.Array:
    return jnp.sqrt(x)


@jax.jit
def root(x: jax.Array) -> jax.Array:
    """The square root with derivative 0 at 0, so that clipping can be differentiated."""
    return _smooth_root(x)


@_smooth_root.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    y = root(*primals)
    return y, tangents[0] * jnp.where(y == 0, 0, 0.5 / jnp.where(y == 0, 1, y))


@jax.jit
def scale_back(x: jax.Array, e: jax.Array) -> jax.Array:
    """`x` times 2^e, for e up to twice the largest exponent of a float."""
    half = e >> 1
    return x * power_of_two(half, x.dtype) * power_of_two(e - half, x.dtype)
