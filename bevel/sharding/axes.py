"""Which mesh axes carry the batch."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import AbstractMesh, NamedSharding

from bevel.errors import FixArgumentsError
from bevel.sharding import types
from bevel.sharding.devices import check_devices

SHARDING_PARAMS = ("sharding", "out_sharding", "dst_sharding")


@dataclasses.dataclass(frozen=True)
class ArgumentShardings:
    """What only concrete arguments show, not those inside `jit`. Hashable: it keys the cache."""

    batch_axes: tuple[str, ...] = ()
    params: tuple[NamedSharding | None, ...] = ()

    @classmethod
    def on(cls, params: Iterable[Any], batch: Iterable[Any]) -> "ArgumentShardings":
        params, batch = list(params), list(batch)
        check_devices(parameters=params, batch=batch)
        return cls(axes_of_arguments(batch), tuple(map(placement, params)))


def placement(leaf: Any) -> NamedSharding | None:
    """Where a concrete array lies, if on a named mesh."""
    sharding = None if isinstance(leaf, jax.core.Tracer) else getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


@dataclasses.dataclass(frozen=True)
class MeshLayout:
    """How one call meets the mesh."""

    batch_axes: tuple[str, ...] = ()
    explicit_mesh: AbstractMesh | None = None
    manual: bool = False
    params: tuple[NamedSharding | None, ...] = ()  # where parameters lie, as far as is known
    pieces: int = 1  # in which a mesh may have cut one example's values


def axes_of_arguments(batch: Iterable[Any]) -> tuple[str, ...]:
    """The axes over which the leading dimension of the batch arguments is sharded, if they say."""
    found: list[str] = []
    for leaf in batch:
        sharding = types.explicit_sharding(leaf) or placement(leaf)
        if sharding is not None and sharding.spec.partitions:
            first = types.spec_axes(sharding.spec.partitions[0])
            found += [a for a in first if a not in found]
        found += [a for a in sorted(types.varying_axes(leaf)) if a not in found]
    return tuple(found)


def axes_of_constraints(one: ClosedJaxpr, two: ClosedJaxpr) -> tuple[str, ...]:
    """The axes that constraints put on dimensions that grow with the batch.

    `one` and `two` are the same program at two batch sizes; a dimension that differs between them
    carries the batch, so the axes that a constraint names there do too.
    """
    narrow, wide = constraints(one.jaxpr), constraints(two.jaxpr)
    if [s.spec for s, _ in narrow] != [s.spec for s, _ in wide]:
        return ()
    found: list[str] = []
    for (sharding, shape), (_, grown) in zip(narrow, wide, strict=True):
        for entry, small, large in zip(sharding.spec.partitions, shape, grown, strict=False):
            if small != large:
                found += [a for a in types.spec_axes(entry) if a not in found]
    return tuple(found)


def constraints(jaxpr: Jaxpr) -> list[tuple[NamedSharding, tuple[int, ...]]]:
    """Every sharding that a program asks for, with the shape it is put on, in program order."""
    found: list[tuple[NamedSharding, tuple[int, ...]]] = []
    for eqn in jaxpr.eqns:
        asked = asked_sharding(eqn)
        if asked is not None:
            found.append((asked, _shape_of(eqn.outvars[0])))
        for name, variables in (("in_shardings", eqn.invars), ("out_shardings", eqn.outvars)):
            for sharding, var in zip(eqn.params.get(name, ()), variables, strict=False):
                if isinstance(sharding, NamedSharding):
                    found.append((sharding, _shape_of(var)))
        for inner in subprograms(eqn.params):
            found += constraints(inner)
    return found


def _shape_of(var: Any) -> tuple[int, ...]:
    return tuple(var.aval.shape)


def asked_sharding(eqn: JaxprEqn) -> NamedSharding | None:
    """The sharding that an equation asks for its output.

    A constraint asks whatever it says. Other equations may carry the type of their output, which
    asks for something only if it names an axis.
    """
    for name in SHARDING_PARAMS:
        sharding = eqn.params.get(name)
        if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
            continue
        names_an_axis = any(map(types.spec_axes, sharding.spec.partitions))
        if names_an_axis or eqn.primitive.name == "sharding_constraint":
            return sharding
    return None


def subprograms(params: dict[str, Any]) -> list[Jaxpr]:
    """The programs inside an equation: bodies of loops, branches, nested calls."""
    found: list[Jaxpr] = []
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found


def axes_of_inner_shard_maps(jaxpr: Jaxpr) -> set[str]:
    """The mesh axes that shard_maps in a program run over."""
    found: set[str] = set()
    for eqn in jaxpr.eqns:
        found |= set(eqn.params.get("newly_manual_axes", ()))
        for inner in subprograms(eqn.params):
            found |= axes_of_inner_shard_maps(inner)
    return found


def mesh_sizes(shardings: Iterable[NamedSharding], mesh: AbstractMesh | None) -> dict[str, int]:
    """Sizes of all mesh axes in sight: of the constraints, the arguments and the context."""
    sizes: dict[str, int] = {}
    for sharding in shardings:
        sizes.update(sharding.mesh.shape)
    for known in (mesh, jax.sharding.get_abstract_mesh()):
        if known is not None and not known.empty:
            sizes.update(known.shape)
    return sizes


def check_declared(axes: Sequence[str], sizes: dict[str, int]) -> None:
    """Raises if a mesh is in sight and a declared batch axis is not on it."""
    for axis in axes if sizes else ():
        if axis not in sizes:
            raise FixArgumentsError(
                f"batch_axes names {axis!r}, but the mesh in sight has axes "
                f"{tuple(sizes)}. Name axes of the mesh that the batch is placed on, or leave "
                "batch_axes out to have them found."
            )
