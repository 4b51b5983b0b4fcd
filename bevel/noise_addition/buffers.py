"""Sharding and memory of the buffers of correlated noise: each follows its leaf."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bevel.noise_addition.leaves import NoiseLeaf
from bevel.noise_addition.state import NoiseState, checked_state
from bevel.sharding import types
from bevel.sharding.axes import placement
from bevel.sharding.shard_generation import leaf_specs
from bevel.sharding.sharding_like import with_sharding_like

PyTree = Any
Buffers = tuple[Any, ...]
"""One tree of arrays per leaf; empty if the mechanism needs no buffers."""


def _is_shaped_like(buffer: Any, like: Any) -> bool:
    """Returns whether a buffer has the shape of `like`, after any leading dimensions."""
    lead = buffer.ndim - like.ndim
    return like.ndim > 0 and lead >= 0 and buffer.shape[lead:] == like.shape


def _map_buffers(function: Callable[..., Any], buffers: Buffers, *leaves: list[Any]) -> Buffers:
    """Applies `function(buffer, *values of its leaf)` to every buffer."""
    return tuple(
        jax.tree.map(lambda buffer, of_leaf=of_leaf: function(buffer, *of_leaf), tree)
        for tree, *of_leaf in zip(buffers, *leaves, strict=False)
    )


def place_buffers(buffers: Buffers, likes: list[jax.Array], leaves: list[NoiseLeaf]) -> Buffers:
    """Shards each buffer like its array in `likes`. Leading dimensions are not split."""

    def place(buffer: jax.Array, like: jax.Array, leaf: NoiseLeaf) -> jax.Array:
        if not _is_shaped_like(buffer, like):
            return buffer
        if types.manual_axes():
            return types.as_varying(buffer, types.varying_axes(leaf.value))
        sharding = placement(like) or types.explicit_sharding(like)
        if sharding is not None:
            spec = PartitionSpec(*(None,) * (buffer.ndim - like.ndim), *sharding.spec.partitions)
            buffer = jax.device_put(buffer, NamedSharding(sharding.mesh, spec))
        if isinstance(like, jax.core.Tracer):
            return with_sharding_like(buffer, jnp.broadcast_to(like, buffer.shape))
        return buffer

    return _map_buffers(place, buffers, likes, leaves)


def move_buffers(buffers: Buffers, likes: list[jax.Array], memory: str) -> Buffers:
    """Moves buffers to 'host' or 'device' memory. Other state, such as counters, stays."""
    space = jax.memory.Space.Host if memory == "host" else jax.memory.Space.Device

    def move(buffer: jax.Array, like: jax.Array) -> jax.Array:
        return jax.device_put(buffer, space) if _is_shaped_like(buffer, like) else buffer

    return _map_buffers(move, buffers, likes)


def state_specs(noise_state: NoiseState, params: PyTree, specs: PyTree) -> NoiseState:
    """Returns the PartitionSpecs of a noise state, to pass to `jax.shard_map`.

    Args:
      noise_state: the result of `init(params)` outside of the shard_map, or its shapes.
      params: the global parameters, or their shapes.
      specs: PartitionSpecs of the gradient, a prefix of the tree of `params`.
    """

    def split(buffer: Any, leaf: Any, spec: PartitionSpec | None) -> PartitionSpec:
        if spec is None or not _is_shaped_like(buffer, leaf):
            return PartitionSpec()
        return PartitionSpec(*(None,) * (buffer.ndim - leaf.ndim), *spec.partitions)

    buffers = checked_state(noise_state).buffers
    buffers = _map_buffers(split, buffers, jax.tree.leaves(params), leaf_specs(specs, params))
    step: Any = PartitionSpec()
    return NoiseState(step, buffers)
