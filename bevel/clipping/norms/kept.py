"""Norms of gradients that are kept, one per example: right for any program."""

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms.registry import Norm

# A sum of up to this many squares in one go has a rounding error that is not worth splitting.
ONE_STAGE = 4096


def kept_norm(gradient: jax.Array) -> Norm:
    """L2 norms of `gradient[i]` for a stack of gradients (B, ...).

    Squares are taken after an exact scaling by a power of two, so neither overflow nor underflow
    of a square can change the norm, and are summed in stages, because one long float32 sum can
    stall: 2**25 ones summed in a row give 2**24.
    """
    if gradient.size == 0:
        zeros = jnp.zeros(gradient.shape[:1], precision.accumulation_dtype(gradient.dtype))
        return Norm(zeros, zeros)
    scaled, unscale = scale_to_one(gradient)
    squares, terms = staged_sum(scaled * scaled)
    estimate = jnp.sqrt(squares) * unscale
    slack = precision.rounding_growth(terms + 4, scaled.dtype)
    return Norm(estimate, estimate * (1 + slack))


def scale_to_one(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`x[i]` times the power of two that brings its largest entry near 1, and the inverse (B,)."""
    x = x.astype(precision.accumulation_dtype(x.dtype))
    top = jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)))
    up, down = power_of_two_inverse(top)
    return x * jnp.expand_dims(up, tuple(range(1, x.ndim))), down


def power_of_two_inverse(top: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For `top` in [2^e, 2^(e+1)): the exact pair (2^-e, 2^e), e kept within what a float holds."""
    info = jnp.finfo(top.dtype)
    integer = np.dtype(f"int{info.bits}")
    limit = -info.minexp
    exponent = (jax.lax.bitcast_convert_type(top, integer) >> info.nmant) - info.maxexp + 1
    exponent = jnp.clip(exponent, -limit, limit)

    def power(e: jax.Array) -> jax.Array:
        return jax.lax.bitcast_convert_type((e + info.maxexp - 1) << info.nmant, top.dtype)

    return power(-exponent), power(exponent)


def staged_sum(x: jax.Array) -> tuple[jax.Array, int]:
    """Sums `x` (B, ...) to (B,) in short stages; also the number of roundings in a row.

    Each dimension is cut into (outer, inner). The inner parts are summed first and lie within one
    shard, since a mesh cuts dimensions into few, power-of-two pieces; the outer parts are summed
    last, together, so that B numbers cross the mesh and not a row or a column of each gradient.
    """
    outer, inner = stages(x.shape[1:])
    terms = roundings(x.shape[1:])
    parts = [n for pair in zip(outer, inner, strict=True) for n in pair]
    x = x.reshape(x.shape[0], *parts)
    for position, size in reversed(list(enumerate(inner))):
        if size > 1:
            # The barrier keeps the compiler from merging the stages back into one long sum.
            axis = 2 * position + 2
            x = jax.lax.optimization_barrier(jnp.sum(x, axis=axis, keepdims=True))
    return jnp.sum(x, axis=tuple(range(1, x.ndim))), terms


def stages(shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """How each dimension is cut: (outer, inner). A small array is summed in one stage."""
    if np.prod(shape) <= ONE_STAGE:
        return list(shape), [1] * len(shape)
    most = 2 ** min(6, 12 // len(shape))
    outer = [min(most, size & -size) for size in shape]
    return outer, [size // out for size, out in zip(shape, outer, strict=True)]


def roundings(shape: tuple[int, ...]) -> int:
    """The most additions that one term goes through in `staged_sum`."""
    outer, inner = stages(shape)
    return sum(size for size in inner if size > 1) + int(np.prod(outer))
