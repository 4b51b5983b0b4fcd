"""Which mesh axes carry the batch: from shardings, constraints and subprograms."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
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
    """Shardings that are known only for concrete arguments, not inside `jit`.

    Hashable, because it is part of a cache key.
    """

    batch_axes: tuple[str, ...] = ()
    params: tuple[NamedSharding | None, ...] = ()

    @classmethod
    def on(cls, params: Iterable[Any], batch: Iterable[Any]) -> "ArgumentShardings":
        params, batch = list(params), list(batch)
        check_devices(parameters=params, batch=batch)
        return cls(axes_of_arguments(batch), tuple(map(placement, params)))


def placement(leaf: Any) -> NamedSharding | None:
    """The sharding of a concrete array, or None if it is not a `NamedSharding`."""
    sharding = None if isinstance(leaf, jax.core.Tracer) else getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


@dataclasses.dataclass(frozen=True)
class MeshLayout:
    """What one call of the clipping engine knows about the mesh."""

    batch_axes: tuple[str, ...] = ()
    explicit_mesh: AbstractMesh | None = None
    manual: bool = False
    params: tuple[NamedSharding | None, ...] = ()  # None where the sharding is not known
    spread: bool = False  # the compiler may split the batch, over axes that may be unknown
    pieces: int = 1  # shards that one example's values may be split into


def axes_of_arguments(batch: Iterable[Any]) -> tuple[str, ...]:
    """The axes over which the leading dimension of the batch arguments is known to be sharded."""
    axes: list[str] = []
    for leaf in batch:
        sharding = types.explicit_sharding(leaf) or placement(leaf)
        if sharding is not None and sharding.spec.partitions:
            first = types.spec_axes(sharding.spec.partitions[0])
            axes += [a for a in first if a not in axes]
        axes += [a for a in sorted(types.varying_axes(leaf)) if a not in axes]
    return tuple(axes)


def axes_of_constraints(one: ClosedJaxpr, two: ClosedJaxpr) -> tuple[str, ...]:
    """The axes that sharding constraints name on dimensions that grow with the batch.

    `one` and `two` are the same program at two batch sizes. A dimension that differs between them
    carries the batch, and so do the axes that a constraint names there.
    """
    first, second = constraints(one.jaxpr), constraints(two.jaxpr)
    if [s.spec for s, _ in first] != [s.spec for s, _ in second]:
        return ()
    axes: list[str] = []
    for (sharding, shape), (_, other_shape) in zip(first, second, strict=True):
        for entry, n, m in zip(sharding.spec.partitions, shape, other_shape, strict=False):
            if n != m:
                axes += [a for a in types.spec_axes(entry) if a not in axes]
    return tuple(axes)


def constraints(jaxpr: Jaxpr) -> list[tuple[NamedSharding, tuple[int, ...]]]:
    """Every sharding that a program requests and the shape it applies to, in program order."""
    found: list[tuple[NamedSharding, tuple[int, ...]]] = []
    for eqn in equations_in(jaxpr):
        requested = requested_sharding(eqn)
        if requested is not None:
            found.append((requested, _shape_of(eqn.outvars[0])))
        for name, variables in (("in_shardings", eqn.invars), ("out_shardings", eqn.outvars)):
            for sharding, var in zip(eqn.params.get(name, ()), variables, strict=False):
                if isinstance(sharding, NamedSharding):
                    found.append((sharding, _shape_of(var)))
    return found


def _shape_of(var: Any) -> tuple[int, ...]:
    return tuple(var.aval.shape)


def requested_sharding(eqn: JaxprEqn) -> NamedSharding | None:
    """The sharding that an equation requests for its output.

    A sharding constraint always is a request. Other equations may carry the type of their output,
    which is a request only if it names an axis.
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
    """The jaxprs inside an equation: bodies of loops, branches and nested calls."""
    found: list[Jaxpr] = []
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found


def equations_in(jaxpr: Jaxpr, name: str | None = None) -> Iterator[JaxprEqn]:
    """The equations of a program at any depth, in its order: all, or those of a primitive."""
    for eqn in jaxpr.eqns:
        if name in (None, eqn.primitive.name):
            yield eqn
        for inner in subprograms(eqn.params):
            yield from equations_in(inner, name)


def axes_of_inner_shard_maps(jaxpr: Jaxpr) -> set[str]:
    """The mesh axes that the `shard_map`s inside a program run over."""
    manual = (eqn.params.get("newly_manual_axes", ()) for eqn in equations_in(jaxpr))
    return {axis for axes in manual for axis in axes}


def mesh_sizes(shardings: Iterable[NamedSharding], mesh: AbstractMesh | None) -> dict[str, int]:
    """Sizes of all known mesh axes: of `shardings`, of `mesh` and of the context mesh."""
    sizes: dict[str, int] = {}
    for sharding in shardings:
        sizes.update(sharding.mesh.shape)
    for known in (mesh, jax.sharding.get_abstract_mesh()):
        if known is not None and not known.empty:
            sizes.update(known.shape)
    return sizes


def check_declared(axes: Sequence[str], sizes: dict[str, int]) -> None:
    """Raises if a mesh is known and does not have a declared batch axis."""
    for axis in axes if sizes else ():
        if axis not in sizes:
            raise FixArgumentsError(
                f"batch_axes names {axis!r}, but the mesh has the axes {tuple(sizes)}. Name axes "
                "of the mesh that the batch is placed on, or leave batch_axes out to detect them."
            )
