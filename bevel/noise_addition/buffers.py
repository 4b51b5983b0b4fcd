"""Where the buffers of correlated noise lie: each beside the leaf whose elements it holds."""

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
"""One tree for each leaf, or none at all."""


def _is_shaped_like(buffer: Any, like: Any) -> bool:
    """Whether a buffer holds the elements of a leaf, behind leading dimensions."""
    lead = buffer.ndim - like.ndim
    return like.ndim > 0 and lead >= 0 and buffer.shape[lead:] == like.shape


def placed(buffers: Buffers, likes: list[jax.Array], leaves: list[NoiseLeaf]) -> Buffers:
    """Buffers, each where its `like` is: leading dimensions lie on no mesh axis."""

    def place(buffer: jax.Array, like: jax.Array, leaf: NoiseLeaf) -> jax.Array:
        if not _is_shaped_like(buffer, like):
            return buffer
        if types.manual_axes():
            return types.as_varying(buffer, types.varying_axes(leaf.value))
        known = placement(like) or types.explicit_sharding(like)
        if known is not None:
            spec = PartitionSpec(*(None,) * (buffer.ndim - like.ndim), *known.spec.partitions)
            buffer = jax.device_put(buffer, NamedSharding(known.mesh, spec))
        if isinstance(like, jax.core.Tracer):
            return with_sharding_like(buffer, jnp.broadcast_to(like, buffer.shape))
        return buffer

    return tuple(
        jax.tree.map(lambda b, like=like, leaf=leaf: place(b, like, leaf), of_leaf)
        for of_leaf, like, leaf in zip(buffers, likes, leaves, strict=False)
    )


def moved(buffers: Buffers, likes: list[jax.Array], memory: str) -> Buffers:
    """Buffers in the memory of the 'host' or of the 'device'. Counters and such stay."""
    space = jax.memory.Space.Host if memory == "host" else jax.memory.Space.Device

    def move(buffer: jax.Array, like: jax.Array) -> jax.Array:
        return jax.device_put(buffer, space) if _is_shaped_like(buffer, like) else buffer

    return tuple(
        jax.tree.map(lambda b, like=like: move(b, like), of_leaf)
        for of_leaf, like in zip(buffers, likes, strict=False)
    )


def state_specs(noise_state: NoiseState, params: PyTree, specs: PyTree) -> NoiseState:
    """How a state is split where `specs` split the gradient: for the specs of a `jax.shard_map`.

    Args:
      noise_state: what `init(params)` gave outside of the shard_map, or its shapes.
      params: the parameters, whole, or their shapes.
      specs: PartitionSpecs, a prefix of `params`.
    """

    def split(buffer: Any, leaf: Any, spec: PartitionSpec | None) -> PartitionSpec:
        if spec is None or not _is_shaped_like(buffer, leaf):
            return PartitionSpec()
        return PartitionSpec(*(None,) * (buffer.ndim - leaf.ndim), *spec.partitions)

    leaves = zip(jax.tree.leaves(params), leaf_specs(specs, params), strict=True)
    buffers = tuple(
        jax.tree.map(lambda b, leaf=leaf, spec=spec: split(b, leaf, spec), of_leaf)
        for of_leaf, (leaf, spec) in zip(checked_state(noise_state).buffers, leaves, strict=False)
    )
    step: Any = PartitionSpec()
    return NoiseState(step, buffers)
