"""Computes the coefficients that clip per-example gradients from their norms."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.norms import Norm
from bevel.clipping.norms.scaling import exponent, power_of_two, root, scale_back, scale_to_one
from bevel.clipping.options import Clip
from bevel.sharding.types import varying_axes

# The largest coefficient, chosen so that it cannot turn a subnormal gradient into infinity.
LARGEST = 2.0**120


@jax.jit  # traced once for estimates and bounds, with and without scaling
def total_norm(norms: Sequence[jax.Array]) -> jax.Array:
    """The norm of a tree from the norms (B,) or (N, B) of leaves, without over- or underflow."""
    dtype = precision.accumulation_dtype(*(n.dtype for n in norms))
    rows = jnp.concatenate([jnp.atleast_2d(n).astype(dtype) for n in norms])
    scaled, e = scale_to_one(rows, (0,))
    return scale_back(root(jnp.sum(scaled * scaled, axis=0)), e)


def _over_shards(norm: Norm, batch_axes: Collection[str]) -> Norm:
    """The norm of a gradient that shard_map splits over axes other than the batch axes."""
    axes = tuple(sorted(varying_axes(norm.upper) - set(batch_axes)))
    if not axes:
        return norm

    def root_of_sum(x: jax.Array) -> jax.Array:
        e = exponent(jax.lax.pmax(x, axes))
        scaled = x * power_of_two(-e, x.dtype)
        return scale_back(root(jax.lax.psum(scaled * scaled, axes)), e)

    shards = math.prod(jax.lax.axis_size(axis) for axis in axes)
    slack = precision.rounding_growth(shards + 4, norm.upper.dtype)
    return Norm(root_of_sum(norm.estimate), root_of_sum(norm.upper) * (1 + slack))


def tree_norm(leaves: Sequence[Norm], batch_axes: Collection[str] | None = ()) -> Norm:
    """Norm and bound of a group of leaves. The bound covers rounding `coefficient * gradient`.

    Each of `leaves` has norms (B,) of one leaf, or (N, B) of several.
    With `batch_axes=None`, it is the norm of one shard.
    """
    norms = leaves if batch_axes is None else [_over_shards(n, batch_axes) for n in leaves]
    upper = total_norm([n.upper for n in norms])
    count = sum(len(n.upper) if n.upper.ndim > 1 else 1 for n in norms)
    slack = precision.rounding_growth(count + 16, upper.dtype)
    return Norm(total_norm([n.estimate for n in norms]), upper * (1 + slack))


def norm_of_parts(parts: Sequence[Norm]) -> Norm:
    """The norm of a gradient whose disjoint parts have these norms."""
    return parts[0] if len(parts) == 1 else tree_norm(parts, None)


def coefficients(norm: Norm, clip_norm: Any, clip: Clip) -> jax.Array:
    """The factor (B,) that brings each gradient to its clip norm, or to norm 1 when rescaling.

    It is `min(1, C / n)`, or `1 / max(n, C)` when rescaling. Automatic clipping uses
    `C / (n + gamma)`, or `1 / (n + gamma)` when rescaling.
    """
    upper = norm.upper
    info = jnp.finfo(upper.dtype)
    if isinstance(clip_norm, float) and math.isfinite(clip_norm):
        clip_norm = min(clip_norm, float(info.max))
    limit = jnp.asarray(clip_norm, upper.dtype)
    target = jnp.ones_like(limit) if clip.rescale_to_unit_norm else limit
    if clip.automatic_gamma is not None:
        factor = target / (upper + clip.automatic_gamma)
    elif clip.rescale_to_unit_norm:
        largest = jnp.maximum(upper, limit)
        factor = jnp.where(largest > 0, 1 / largest, 0)
    else:
        factor = jnp.where(upper <= limit, 1, limit / upper)
    # Zero where the norm is not finite, because a NaN coefficient would survive the exclusion of
    # such examples, and where a subnormal factor has lost its precision.
    valid = jnp.isfinite(upper) & (factor >= info.smallest_normal)
    return jnp.where(valid, jnp.minimum(factor, LARGEST), 0)


def usable(norm: Norm, padding: jax.Array | None, nan_safe: bool) -> jax.Array | None:
    """Mask of the examples to sum (None: all): not padding and, if `nan_safe`, with finite norm."""
    finite = jnp.isfinite(norm.upper) if nan_safe else None
    if padding is None:
        return finite
    return ~padding if finite is None else finite & ~padding
