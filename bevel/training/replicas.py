"""Whether all copies of a replicated array are the same, compared where they lie.

Devices that hold the same part of an array must hold the same bits of it. Where they do not, one
process ran something else (another learning rate, other data), and a checkpoint of one copy would
say nothing about the others.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bevel.errors import RestoreCheckpointError
from bevel.training.digest import checksum
from bevel.training.state import path_text

PyTree = Any


def check_replicas(tree: PyTree, mesh: Mesh | None) -> None:
    """Raises, in every process, if copies of a part of an array differ. A few bytes are moved."""
    if mesh is None:
        return
    named = [
        (path_text(path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
    ]
    same = _same_everywhere(mesh, tuple(leaf.sharding.spec for _, leaf in named))(
        [leaf for _, leaf in named]
    )
    equal = jax.device_get(same).tolist()
    differing = [name for (name, _), yes in zip(named, equal, strict=True) if not yes]
    if differing:
        raise RestoreCheckpointError(
            f"copies of {', '.join(differing[:8])} differ between devices: processes did not "
            "compute the same step. Nothing of these steps was charged or released. Check that "
            "every process runs the same program on the same data, and start again: the run goes "
            "on from its last checkpoint."
        )


@functools.cache
def _same_everywhere(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Any:
    """A compiled function of arrays with these specs: a truth value for each."""

    def local(leaves: list[jax.Array]) -> jax.Array:
        return jnp.stack([equal_copies(x, spec) for x, spec in zip(leaves, specs, strict=True)])

    def equal_copies(x: jax.Array, spec: PartitionSpec) -> jax.Array:
        mine = checksum(x)
        copies = tuple(axis for axis in mesh.axis_names if axis not in _axes_of(spec))
        if not copies:
            return jnp.ones((), jnp.int32)
        most, least = jax.lax.pmax(mine, copies), jax.lax.pmin(mine, copies)
        return jax.lax.pmin(jnp.all(most == least).astype(jnp.int32), mesh.axis_names)

    run = jax.shard_map(
        local, mesh=mesh, in_specs=(list(specs),), out_specs=PartitionSpec(), check_vma=False
    )
    return jax.jit(run)


def _axes_of(spec: PartitionSpec) -> set[str]:
    """Mesh axes over which an array is split."""
    found: set[str] = set()
    for part in spec:
        if part is not None and part is not PartitionSpec.UNCONSTRAINED:
            found |= {part} if isinstance(part, str) else set(part)
    return found
