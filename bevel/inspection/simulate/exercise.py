"""`shard_map_simulate`: data parallelism spelled out as a loop, for those who learn it."""

from typing import cast

import jax
import jax.numpy as jnp

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


def shard_map_simulate(seed: float, x: jax.Array, num_shards: float, features: float) -> jax.Array:
    """Applies a Flax `nn.Dense(features)` to every shard of `x` (N, D).

    The parameters are made once, on the first shard, because all shards of a data-parallel program
    have the same. So the result is that of applying the layer to all of `x` at once.
    """
    try:
        from flax import linen as nn
    except ImportError as error:
        raise FixArgumentsError(
            "shard_map_simulate needs Flax, which is not installed: pip install flax."
        ) from error
    count, width = (
        whole_number("num_shards", int(num_shards)),
        whole_number("features", int(features)),
    )
    x = jnp.asarray(x)
    if x.ndim != 2:
        raise FixArgumentsError(f"x has shape {x.shape}: give one row per example, (N, in_dim).")
    if x.shape[0] == 0 or x.shape[0] % count:
        raise FixArgumentsError(
            f"x has {x.shape[0]} rows, which {count} shards do not divide evenly: pad x to a "
            f"multiple of {count} rows, or change num_shards."
        )
    model = nn.Dense(width)
    size = x.shape[0] // count

    def shard(i: int) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x, i * size, size, axis=0)

    params = model.init(jax.random.key(int(seed)), shard(0))
    outputs = [cast(jax.Array, model.apply(params, shard(i))) for i in range(count)]
    return jnp.concatenate(outputs, axis=0).reshape(-1)
