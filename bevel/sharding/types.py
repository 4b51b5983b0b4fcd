"""Sharding information in array types: Explicit specs, manual and varying axes, meshes."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec


def spec_axes(entry: Any) -> tuple[str, ...]:
    """The mesh axes that one entry of a PartitionSpec names."""
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry) if isinstance(entry, tuple) else ()


def manual_axes() -> tuple[str, ...]:
    """The axes that an enclosing `shard_map` runs over, or none outside of a `shard_map`."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def on_one_device() -> bool:
    """Whether the program runs on one device, or on one shard with all mesh axes manual.

    Otherwise the compiler may partition the program. It cannot partition a kernel, and would gather
    its sharded operands instead.
    """
    mesh = jax.sharding.get_abstract_mesh()
    all_manual = bool(mesh.axis_names) and set(mesh.manual_axes) == set(mesh.axis_names)
    return jax.device_count() == 1 or all_manual


def varying_axes(x: Any) -> frozenset[str]:
    """The manual axes over which `x` may differ between shards; none if types do not track them."""
    return frozenset(getattr(_type_of(x).manual_axis_type, "varying", ()))


def on_all_shards(flag: jax.Array) -> jax.Array:
    """`flag`, or whether all shards have it where they must take the same branch.

    If only some axes are manual, the compiler splits the program within each shard. It may then
    communicate over all devices, and would wait forever for a shard that took another branch.
    """
    if on_one_device():
        return flag
    axes = tuple(sorted(varying_axes(flag))) if types_track_varying_axes() else manual_axes()
    return jax.lax.pmin(flag.astype(np.int32), axes) > 0 if axes else flag


def _type_of(x: Any) -> Any:
    """The type of an array, or `x` if it is one."""
    return x if isinstance(x, jax.core.ShapedArray | jax.ShapeDtypeStruct) else jax.typeof(x)


def types_track_varying_axes() -> bool:
    """Whether the enclosing `shard_map` has `check_vma=True`, judged by a type that JAX assigns."""
    axes = manual_axes()
    return bool(axes) and bool(varying_axes(jax.lax.axis_index(axes[0])))


def as_varying(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    """`x` typed as varying over `axes`, so that autodiff does not sum its gradient over them."""
    missing = tuple(a for a in axes if a not in varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def explicit_sharding(x: Any) -> NamedSharding | None:
    """The sharding in the type of `x` if its mesh has Explicit axes, else None."""
    sharding = getattr(_type_of(x), "sharding", None)
    return (
        sharding if isinstance(sharding, NamedSharding) and explicit_axes(sharding.mesh) else None
    )


def explicit_axes(mesh: Any) -> tuple[str, ...]:
    if mesh.empty:
        return ()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if kind == AxisType.Explicit)


def explicit_mesh(leaves: Iterable[Any]) -> AbstractMesh | None:
    """The mesh with Explicit axes of the arguments, or else of the context, or None."""
    for leaf in leaves:
        sharding = explicit_sharding(leaf)
        if sharding is not None:
            return sharding.mesh.abstract_mesh
    context = jax.sharding.get_abstract_mesh()
    return context if explicit_axes(context) else None


def mesh_size(x: Any) -> int:
    """The number of devices in the type of an array, which names its mesh even on Auto axes."""
    mesh = _type_of(x).sharding.mesh
    return 1 if mesh.empty else mesh.size


def zeros_of_type(aval: Any, lead: tuple[int, ...] = ()) -> jax.Array:
    """Zeros with the shape, dtype, Explicit sharding and varying axes of `aval`.

    `lead` are dimensions to add in front, which are not sharded.
    """
    sharding = getattr(aval, "sharding", None)
    options: dict[str, Any] = {}
    if isinstance(sharding, NamedSharding) and explicit_axes(sharding.mesh):
        spec = PartitionSpec(*(None,) * len(lead), *sharding.spec.partitions)
        options = {"out_sharding": NamedSharding(sharding.mesh, spec) if lead else sharding}
    zeros = jnp.zeros((*lead, *aval.shape), aval.dtype, **options)
    return as_varying(zeros, varying_axes(aval))


def retyped(x: Any, shape: tuple[int, ...], mesh: AbstractMesh | None, dropped: int = 0) -> Any:
    """The type of `x` with another shape, its Explicit sharding on `mesh`, and its varying axes.

    The new shape lacks the first `dropped` dimensions.
    """
    aval = _type_of(x)
    options: dict[str, Any] = {"weak_type": getattr(aval, "weak_type", False)}
    sharding = explicit_sharding(x)
    if sharding is not None:
        spec = PartitionSpec(*tuple(sharding.spec.partitions)[dropped:])
        options["sharding"] = NamedSharding(mesh or sharding.mesh.abstract_mesh, spec)
    if varying_axes(x):
        context = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
        options = {"sharding": context} | options | {"manual_axis_type": aval.manual_axis_type}
    return jax.ShapeDtypeStruct(shape, aval.dtype, **options)


def with_axes_of_size_one(mesh: AbstractMesh, axes: Iterable[str]) -> AbstractMesh:
    """The mesh with `axes` reduced to size 1, so that one example fits any sharding over them."""
    sizes = tuple(1 if name in axes else mesh.shape[name] for name in mesh.axis_names)
    return AbstractMesh(sizes, mesh.axis_names, axis_types=mesh.axis_types)
