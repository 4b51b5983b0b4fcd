"""Whether arrays lie on the same devices, in the same order: JAX computes with no others."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, Sharding

from bevel.errors import FixArgumentsError
from bevel.sharding.types import explicit_axes

FIX = "place all of them on one mesh: bevel.sharding.place(tree, mesh, rules)"


def check_devices(*trees: Any, mesh: Mesh | None = None) -> None:
    """Raises if arrays that go into one computation disagree on devices, order or Explicit mesh.

    JAX moves arrays that nobody placed (uncommitted ones), and these are passed over, as are
    values inside `jit`. The error names the first two that disagree, and the fix.

    Args:
      trees: the arguments of the computation. Paths in the error start with their position.
      mesh: if given, all must lie on the devices of this mesh.
    """
    placed = placed_leaves(trees)
    if mesh is None:
        first = next(placed, None)
        if first is None:
            return
        name, sharding = first
    else:
        name = "the mesh"
        sharding = NamedSharding(mesh, jax.sharding.PartitionSpec())
    for other_name, other in placed:
        why = disagreement(sharding, other)
        if why:
            raise FixArgumentsError(
                f"{name} and {other_name} lie on {why}: {shown(sharding)} and {shown(other)}. "
                f"One computation cannot take both; {FIX}."
            )


def placed_leaves(trees: tuple[Any, ...]) -> Iterator[tuple[str, Sharding]]:
    """Path and sharding of every array that was placed on purpose."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            placed = leaf.sharding is not None
        else:
            traced = isinstance(leaf, jax.core.Tracer)
            placed = isinstance(leaf, jax.Array) and not traced and leaf.committed
        if placed:
            where = jax.tree_util.keystr(path[1:], simple=True, separator="/")
            name = f"argument {path[0].idx}" + (f" at {where!r}" if where else "")
            yield f"{name} of shape {tuple(leaf.shape)}", leaf.sharding


def disagreement(one: Sharding, other: Sharding) -> str:
    """Why JAX cannot compute with both, or nothing."""
    first, second = device_ids(one), device_ids(other)
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


def device_ids(sharding: Sharding) -> list[int]:
    """Devices in the order of the mesh, or without one of their numbers. None: an abstract mesh."""
    if not isinstance(sharding, NamedSharding):
        return sorted(d.id for d in sharding.device_set)
    devices: Any = sharding.mesh.devices.flat if isinstance(sharding.mesh, Mesh) else ()
    return [d.id for d in devices]


def shown(sharding: Sharding) -> str:
    """A sharding in few words: mesh and the numbers of its devices."""
    ids = device_ids(sharding)
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
