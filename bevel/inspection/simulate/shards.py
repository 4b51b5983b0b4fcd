"""Split arrays into the shards of all devices, and join shards, according to specs.

Stacked shards have one leading dimension for each mesh axis, in mesh order.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.sharding.types import spec_axes

Sizes = Mapping[str, int]  # of the manual axes, in the order of the mesh


def named_in(spec: PartitionSpec) -> set[str]:
    return {axis for entry in spec.partitions for axis in spec_axes(entry)}


def check_specs(specs: Iterable[Any]) -> None:
    """Raises for specs that an array on one device cannot have."""
    for spec in specs:
        if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
            raise FixArgumentsError(
                f"the spec {spec} has unreduced or reduced axes, which an array on one device "
                "cannot have. Reduce inside the shard_map, and return the sum."
            )


def split(x: jax.Array, spec: PartitionSpec, sizes: Sizes) -> jax.Array:
    """All shards of `x`, stacked over the axes that `spec` names."""
    shape: list[int] = []
    position: dict[str, int] = {}
    for d, length in enumerate(jnp.shape(x)):
        names = spec_axes(spec.partitions[d]) if d < len(spec.partitions) else ()
        for name in names:
            position[name] = len(shape)
            shape.append(sizes[name])
            length //= sizes[name]
        shape.append(length)
    order = [name for name in sizes if name in position]
    shards = jnp.reshape(x, shape)
    return jnp.moveaxis(shards, [position[name] for name in order], range(len(order)))


def joined(stacked: jax.Array, spec: PartitionSpec, sizes: Sizes) -> jax.Array:
    """Joins shards that are stacked over all axes.

    Devices along an axis that `spec` does not name hold the same values, so the first is used.
    """
    for position, name in reversed(list(enumerate(sizes))):
        if name not in named_in(spec):
            stacked = jax.lax.index_in_dim(stacked, 0, position, keepdims=False)
    order = [name for name in sizes if name in named_in(spec)]
    shape = stacked.shape[len(order) :]
    permutation: list[int] = []
    lengths: list[int] = []
    for d, length in enumerate(shape):
        names = spec_axes(spec.partitions[d]) if d < len(spec.partitions) else ()
        permutation += [*(order.index(name) for name in names), len(order) + d]
        for name in names:
            length *= sizes[name]
        lengths.append(length)
    return jnp.transpose(stacked, permutation).reshape(lengths)


def over_devices(run: Any, sizes: Sizes, in_specs: Sequence[PartitionSpec]) -> Any:
    """Vectorises `run(*shards) -> list of shards` over all devices: from split to stacked shards.

    These are nested `vmap`s, the first mesh axis outermost.
    """
    for name, size in reversed(list(sizes.items())):
        in_axes = tuple(0 if name in named_in(spec) else None for spec in in_specs)
        run = jax.vmap(run, in_axes, 0, axis_name=name, axis_size=size)
    return run
