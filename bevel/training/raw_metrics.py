"""What a step shows of the training data: not private, and kept apart from what is."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bevel.sharding.types import explicit_sharding

PyTree = Any
QUANTILES = (0.1, 0.5, 0.9)


def measures(
    aux: Any, sums: PyTree, is_padding: jax.Array, clip_norm: Any, noise: Any
) -> dict[str, jax.Array]:
    """Numbers about one batch, on the device. Padding rows are in none of them.

    Args:
      aux: per-example losses, gradient norms and aux of the clipped gradient.
      sums: the sum of clipped gradients.
      clip_norm: of this step.
      noise: standard deviation of the noise in each coordinate of `sums`.

    | name               | what it is                                                       |
    | ------------------ | ---------------------------------------------------------------- |
    | `batch_size`       | examples (or users) in the batch                                 |
    | `loss`, aux names  | means over those with a finite loss                              |
    | `clipped_fraction` | share of gradients that were longer than the clip norm           |
    | `not_finite`       | gradients that were NaN or infinite, and so contributed nothing  |
    | `norm_quantiles`   | 0.1, 0.5 and 0.9 quantiles of the norms before clipping          |
    | `signal_to_noise`  | norm of the sum over the expected norm of its noise              |
    """
    real = ~is_padding
    norms = aux.grad_norms.astype(jnp.float32)
    finite = real & jnp.isfinite(norms)
    clip_norm = jnp.asarray(clip_norm, jnp.float32)
    size = sum(leaf.size for leaf in jax.tree.leaves(sums))
    expected = jnp.asarray(noise, jnp.float32) * math.sqrt(size)
    found = {
        "batch_size": real.sum(),
        "loss": _mean(aux.values, real),
        "clipped_fraction": _mean(norms > clip_norm, finite),
        "not_finite": (real & ~jnp.isfinite(norms)).sum(),
        "clip_norm": clip_norm,
        "norm_quantiles": jnp.nanquantile(
            _whole(jnp.where(finite, norms, jnp.nan)), jnp.asarray(QUANTILES, jnp.float32)
        ),
        "signal_to_noise": _norm_of(sums) / expected,
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(aux.aux):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "aux"
        if leaf.ndim == 1 and not jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            found[f"aux/{name}" if name in found else name] = _mean(leaf, real)
    return found


def _mean(values: jax.Array, counted: jax.Array) -> jax.Array:
    """The mean of what counts and is finite; NaN if nothing does."""
    values = values.astype(jnp.float32)
    counted = counted & jnp.isfinite(values)
    total = jnp.where(counted, values, 0).sum()
    return total / counted.sum().astype(jnp.float32)


def _whole(values: jax.Array) -> jax.Array:
    """One number per example, on every device: Explicit axes do not sort what is split."""
    sharding = explicit_sharding(values)
    if sharding is None:
        return values
    return jax.sharding.reshard(values, NamedSharding(sharding.mesh, PartitionSpec()))


def _norm_of(tree: PyTree) -> jax.Array:
    squares = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, jnp.zeros((), jnp.float32)))
