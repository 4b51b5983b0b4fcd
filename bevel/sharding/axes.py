"""Which mesh axes carry the batch."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import AbstractMesh, NamedSharding

from bevel.errors import FixArgumentsError
from bevel.sharding import types

SHARDING_PARAMS = ("sharding", "out_sharding", "dst_sharding")


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one call meets the mesh. Hashable: it is part of the cache key of eager calls."""

    batch_axes: tuple[str, ...] = ()
    explicit_mesh: AbstractMesh | None = None
    manual: bool = False

    def spread(self, mesh_sizes: dict[str, int]) -> int:
        """The number of pieces that the mesh cuts the batch into."""
        return math.prod(mesh_sizes.get(axis, 1) for axis in self.batch_axes)


def axes_of_arguments(batch: Iterable[Any]) -> tuple[str, ...]:
    """The axes over which the leading dimension of the batch arguments is sharded, if they say."""
    found: list[str] = []
    for leaf in batch:
        sharding = types.explicit_sharding(leaf)
        if sharding is None and not isinstance(leaf, jax.core.Tracer):
            sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and len(sharding.spec):
            found += [a for a in types.spec_axes(sharding.spec[0]) if a not in found]
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
        for entry, small, large in zip(sharding.spec, shape, grown, strict=False):
            if small != large:
                found += [a for a in types.spec_axes(entry) if a not in found]
    return tuple(found)


def constraints(jaxpr: Jaxpr) -> list[tuple[NamedSharding, tuple[int, ...]]]:
    """Every sharding that a program asks for, with the shape it is put on, in program order."""
    found: list[tuple[NamedSharding, tuple[int, ...]]] = []
    for eqn in jaxpr.eqns:
        asked = asked_sharding(eqn)
        if asked is not None:
            found.append((asked, tuple(eqn.outvars[0].aval.shape)))
        for name, variables in (("in_shardings", eqn.invars), ("out_shardings", eqn.outvars)):
            for sharding, var in zip(eqn.params.get(name, ()), variables, strict=False):
                if isinstance(sharding, NamedSharding):
                    found.append((sharding, tuple(var.aval.shape)))
        for inner in subprograms(eqn.params):
            found += constraints(inner)
    return found


def asked_sharding(eqn: JaxprEqn) -> NamedSharding | None:
    """The sharding that an equation asks for its output.

    A constraint asks whatever it says. Other equations may carry the type of their output, which
    asks for something only if it names an axis.
    """
    for name in SHARDING_PARAMS:
        sharding = eqn.params.get(name)
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            if eqn.primitive.name == "sharding_constraint" or any(
                map(types.spec_axes, sharding.spec)
            ):
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
    """Raises if a declared batch axis is on no mesh in sight."""
    for axis in axes:
        if axis not in sizes:
            raise FixArgumentsError(
                f"batch_axes names {axis!r}, but the mesh in sight has axes "
                f"{tuple(sizes)}. Name axes of the mesh that the batch is placed on, or leave "
                "batch_axes out to have them found."
            )
