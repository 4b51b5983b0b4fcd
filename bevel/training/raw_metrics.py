"""The raw metrics of a step: computed from the training data without noise, so never released."""

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
    """Computes metrics of one batch on the device, without its padding.

    Args:
      aux: per-example losses, gradient norms and aux of the clipped gradient.
      sums: the clipped sum.
      clip_norm: the clip norm of this step.
      noise: the standard deviation of the noise in each coordinate of `sums`.

    | name               | what it is                                                       |
    | ------------------ | ---------------------------------------------------------------- |
    | `batch_size`       | examples (or users) in the batch                                 |
    | `loss`, aux names  | means over the examples with a finite value                      |
    | `clipped_fraction` | share of finite gradients with a norm above the clip norm        |
    | `not_finite`       | number of non-finite gradients, which contribute zero            |
    | `norm_quantiles`   | 0.1, 0.5 and 0.9 quantiles of the norms before clipping          |
    | `signal_to_noise`  | norm of the clipped sum over the expected norm of its noise      |
    """
    real = ~is_padding
    norms = aux.grad_norms.astype(jnp.float32)
    finite = real & jnp.isfinite(norms)
    clip_norm = jnp.asarray(clip_norm, jnp.float32)
    size = sum(leaf.size for leaf in jax.tree.leaves(sums))
    expected = jnp.asarray(noise, jnp.float32) * math.sqrt(size)
    metrics = {
        "batch_size": real.sum(),
        "loss": _mean(aux.values, real),
        "clipped_fraction": _mean(norms > clip_norm, finite),
        "not_finite": (real & ~jnp.isfinite(norms)).sum(),
        "clip_norm": clip_norm,
        "norm_quantiles": jnp.nanquantile(
            _replicated(jnp.where(finite, norms, jnp.nan)), jnp.asarray(QUANTILES, jnp.float32)
        ),
        "signal_to_noise": _norm_of(sums) / expected,
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(aux.aux):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "aux"
        if leaf.ndim == 1 and not jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            metrics[f"aux/{name}" if name in metrics else name] = _mean(leaf, real)
    return metrics


def _mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean of the finite values in the mask, NaN if there are none."""
    values = values.astype(jnp.float32)
    mask = mask & jnp.isfinite(values)
    total = jnp.where(mask, values, 0).sum()
    return total / mask.sum().astype(jnp.float32)


def _replicated(values: jax.Array) -> jax.Array:
    """Replicates values on Explicit meshes, where JAX cannot sort along a sharded axis."""
    sharding = explicit_sharding(values)
    if sharding is None:
        return values
    return jax.sharding.reshard(values, NamedSharding(sharding.mesh, PartitionSpec()))


def _norm_of(tree: PyTree) -> jax.Array:
    squares = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, jnp.zeros((), jnp.float32)))
