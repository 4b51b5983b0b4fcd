"""Check that arrays are on the same devices in the same order, as JAX requires."""

import itertools
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, Sharding

from bevel.errors import FixArgumentsError
from bevel.sharding.types import explicit_axes

FIX = "Place both on one mesh: bevel.sharding.place(tree, mesh, rules)"


def check_devices(*trees: Any, mesh: Mesh | None = None, **named: Any) -> None:
    """Raises if arrays that go into one computation disagree on devices, order or Explicit mesh.

    Uncommitted arrays are skipped because JAX moves them as needed, and so are values inside
    `jit`. The error names the first two arrays that disagree and how to fix it.

    Args:
      trees, named: the arguments of the computation. The error refers to them by position or
        name.
      mesh: if given, all arrays must be on the devices of this mesh.
    """
    arguments = {f"argument {i}": tree for i, tree in enumerate(trees)} | named
    first: tuple[str, Sharding] | None = None
    if mesh is not None:
        first = "the mesh", NamedSharding(mesh, jax.sharding.PartitionSpec())
    for name, tree in arguments.items():
        for number, leaf in enumerate(jax.tree.leaves(tree)):
            sharding = _chosen_sharding(leaf)
            if sharding is None:
                continue
            if first is None:
                first = _name_of(name, tree, number), sharding
            why = _disagreement(first[1], sharding)
            if why:
                raise FixArgumentsError(
                    f"{first[0]} and {_name_of(name, tree, number)} are on {why}: "
                    f"{_summary(first[1])} and {_summary(sharding)}. JAX cannot use both in one "
                    f"computation. {FIX}."
                )


def _name_of(argument: str, tree: Any, number: int) -> str:
    path, leaf = jax.tree_util.tree_leaves_with_path(tree)[number]
    where = jax.tree_util.keystr(path, simple=True, separator="/")
    return argument + (f" at {where!r}" if where else "") + f" of shape {tuple(leaf.shape)}"


def _chosen_sharding(leaf: Any) -> Sharding | None:
    """The sharding of a committed array, or the one that a `ShapeDtypeStruct` carries."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding
    if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array):
        return None
    return leaf.sharding if leaf.committed else None


def _disagreement(one: Sharding, other: Sharding) -> str:
    """Why JAX cannot compute with both shardings, or an empty string if it can."""
    if one is other or getattr(one, "mesh", one) is getattr(other, "mesh", other):
        return ""
    first, second = _device_ids(one), _device_ids(other)
    if first and second and set(first) != set(second):
        return "different devices"
    if not isinstance(one, NamedSharding) or not isinstance(other, NamedSharding):
        return ""
    if first and second and first != second:
        return "the same devices in different orders"
    meshes = one.mesh.abstract_mesh, other.mesh.abstract_mesh
    if meshes[0] != meshes[1] and any(map(explicit_axes, meshes)):
        return "different meshes, and Explicit axes are part of an array's type"
    return ""


def _device_ids(sharding: Sharding) -> list[int]:
    """Device ids in mesh order, sorted if there is no mesh. Empty for an abstract mesh."""
    if not isinstance(sharding, NamedSharding):
        device_set: Any = sharding.device_set
        return sorted(d.id for d in device_set)
    devices: Any = sharding.mesh.devices.flat if isinstance(sharding.mesh, Mesh) else ()
    return [d.id for d in devices]


def _summary(sharding: Sharding) -> str:
    """A sharding as its mesh and the ids of its devices."""
    ids = _device_ids(sharding)
    runs = [
        list(run) for _, run in itertools.groupby(enumerate(ids), lambda pair: pair[1] - pair[0])
    ]
    numbers = ", ".join(
        str(run[0][1]) if len(run) == 1 else f"{run[0][1]} to {run[-1][1]}" for run in runs
    )
    if not isinstance(sharding, NamedSharding):
        return f"device {numbers}"
    sizes = ",".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
    kind = "an Explicit mesh" if explicit_axes(sharding.mesh) else "a mesh"
    return f"{kind} {sizes} of devices {numbers}"
