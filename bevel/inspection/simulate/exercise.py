"""Data parallelism written as a loop over shards, for learning."""

from typing import cast

import jax
import jax.numpy as jnp

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


def shard_map_simulate(seed: float, x: jax.Array, num_shards: float, features: float) -> jax.Array:
    """Applies a Flax `nn.Dense(features)` to every shard of `x` (N, D).

    The parameters are initialised once, with the first shard, because data-parallel shards share
    them. The result equals that of applying the layer to all of `x`, flattened to a vector.
    """
    try:
        from flax import linen as nn
    except ImportError as error:
        raise FixArgumentsError(
            "shard_map_simulate needs Flax, which is not installed. Run: pip install flax"
        ) from error
    count = whole_number("num_shards", int(num_shards))
    width = whole_number("features", int(features))
    x = jnp.asarray(x)
    if x.ndim != 2:
        raise FixArgumentsError(f"x has shape {x.shape}: pass one row per example, (N, in_dim).")
    if x.shape[0] == 0 or x.shape[0] % count:
        raise FixArgumentsError(
            f"x has {x.shape[0]} rows, which cannot be split into {count} equal shards: pad x to "
            f"a multiple of {count} rows, or change num_shards."
        )
    model = nn.Dense(width)
    size = x.shape[0] // count

    def shard(i: int) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=0)

    params = model.init(jax.random.key(int(seed)), shard(0))
    outputs = [cast(jax.Array, model.apply(params, shard(i))) for i in range(count)]
    return jnp.concatenate(outputs, axis=0).reshape(-1)
