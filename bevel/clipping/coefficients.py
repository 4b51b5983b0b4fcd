"""From per-example norms to the coefficients that clip them."""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.norms import Norm
from bevel.clipping.norms.kept import power_of_two_inverse
from bevel.clipping.options import Clip
from bevel.sharding.types import varying_axes

# No coefficient exceeds this, so that it cannot turn a subnormal gradient into an infinity.
LARGEST = 2.0**120


def total_norm(norms: Sequence[jax.Array]) -> jax.Array:
    """The norm of a tree from the norms (B,) of its leaves, without overflow or underflow."""
    dtype = precision.accumulation_dtype(*(n.dtype for n in norms))
    stacked = jnp.stack([n.astype(dtype) for n in norms])
    up, down = power_of_two_inverse(jnp.max(stacked, axis=0))
    scaled = stacked * up[None]
    return jnp.sqrt(jnp.sum(scaled * scaled, axis=0)) * down


def over_shards(norm: jax.Array, batch_axes: Collection[str]) -> jax.Array:
    """Inside shard_map: the norm of a gradient whose pieces lie on the shards of other axes."""
    axes = tuple(sorted(varying_axes(norm) - set(batch_axes)))
    if not axes:
        return norm
    up, down = power_of_two_inverse(jax.lax.pmax(norm, axes))
    return jnp.sqrt(jax.lax.psum((norm * up) ** 2, axes)) * down


def tree_norm(leaves: Sequence[Norm], batch_axes: Collection[str] = ()) -> Norm:
    """Norm and bound of a group of leaves, with room for rounding `coefficient * gradient`."""
    estimate = total_norm([over_shards(n.estimate, batch_axes) for n in leaves])
    upper = total_norm([over_shards(n.upper, batch_axes) for n in leaves])
    slack = precision.rounding_growth(len(leaves) + 16, upper.dtype)
    return Norm(estimate, upper * (1 + slack))


def coefficients(norm: Norm, clip_norm: Any, clip: Clip) -> jax.Array:
    """The factor (B,) that brings each gradient to its clip norm, or to norm 1 when rescaling.

    `min(1, C / n)`; rescaled `1 / max(n, C)`; automatic `C / (n + gamma)`.
    """
    upper = norm.upper
    limit = jnp.asarray(clip_norm, upper.dtype)
    goal = jnp.ones_like(limit) if clip.rescale_to_unit_norm else limit
    if clip.automatic_gamma is not None:
        factor = goal / (upper + clip.automatic_gamma)
    elif clip.rescale_to_unit_norm:
        longest = jnp.maximum(upper, limit)
        factor = jnp.where(longest > 0, 1 / longest, 0)
    else:
        factor = jnp.where(upper <= limit, 1, limit / upper)
    # Examples of unknown norm are left out by selection, but 0 * NaN would still be NaN.
    return jnp.where(jnp.isfinite(upper), jnp.minimum(factor, LARGEST), 0)


def usable(norm: Norm, padding: jax.Array | None, nan_safe: bool) -> jax.Array | None:
    """Which examples enter the sum: real ones with a finite norm. None means all of them."""
    finite = jnp.isfinite(norm.upper) if nan_safe else None
    if padding is None:
        return finite
    return ~padding if finite is None else finite & ~padding
