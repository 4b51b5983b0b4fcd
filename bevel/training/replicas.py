"""Checks on the devices that all replicas of an array are equal.

Devices that hold the same shard must hold the same bits. If they do not, one process computed
something else (with another learning rate, or other data), and a checkpoint of one replica would
not describe the others.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bevel.errors import RestoreCheckpointError
from bevel.sharding.types import spec_axes
from bevel.training.digest import checksum
from bevel.training.state import path_text

PyTree = Any


def check_replicas(tree: PyTree, mesh: Mesh | None) -> None:
    """Raises in every process if replicas of a shard differ. Only checksums are communicated."""
    if mesh is None:
        return
    named = [
        (path_text(path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
    ]
    if not named:
        return
    compare = replica_comparison(mesh, tuple(leaf.sharding.spec for _, leaf in named))
    equal = jax.device_get(compare([leaf for _, leaf in named])).tolist()
    differing = [name for (name, _), is_equal in zip(named, equal, strict=True) if not is_equal]
    if differing:
        raise RestoreCheckpointError(
            f"replicas of {', '.join(differing[:8])} differ between devices, so the processes did "
            "not compute the same step. None of these steps was charged or released. Check that "
            "every process runs the same program on the same data, and start again: the run "
            "resumes from its last checkpoint."
        )


@functools.cache
def replica_comparison(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Any:
    """Returns a compiled function of arrays with these specs: 1 where all replicas are equal.

    Arrays with the same replica axes are compared at once, so that the number of collectives does
    not grow with the number of arrays.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, spec in enumerate(specs):
        sharded = {axis for entry in spec.partitions for axis in spec_axes(entry)}
        replica_axes = tuple(axis for axis in mesh.axis_names if axis not in sharded)
        groups.setdefault(replica_axes, []).append(number)

    def compare_all(leaves: list[jax.Array]) -> jax.Array:
        equal = [jnp.ones((), jnp.int32)] * len(leaves)
        for axes, members in groups.items():
            if axes:
                local = jnp.stack([checksum(leaves[number]) for number in members])
                largest, smallest = jax.lax.pmax(local, axes), jax.lax.pmin(local, axes)
                same = jnp.all(largest == smallest, axis=1).astype(jnp.int32)
                for number, is_equal in zip(members, same, strict=True):
                    equal[number] = is_equal
        return jax.lax.pmin(jnp.stack(equal), mesh.axis_names)

    specs_of_leaves, replicated = (list(specs),), PartitionSpec()
    return jax.jit(
        jax.shard_map(
            compare_all, mesh=mesh, in_specs=specs_of_leaves, out_specs=replicated, check_vma=False
        )
    )
