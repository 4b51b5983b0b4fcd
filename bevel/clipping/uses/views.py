"""Routes: how a parameter reaches an operand without being changed, and the way back.

Casts, constraints, transposes, reshapes, slices and the entries into loops only rearrange a
parameter, so the gradient at the end of a route has the norm of the gradient at its start. Behind
them may be turns, where a parameter is joined with others (`combinations.py`).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from bevel.clipping.norms.registry import SEPARATE, Loops

# Equations that pass a parameter on as it is.
# Not `pvary`: the gradients of shards that share a parameter add.
IDENTITIES = {"convert_element_type", "copy", "copy_p", "sharding_constraint", "reshard"}
SQUEEZES = {"squeeze", "expand_dims"}


class LoopEntry(NamedTuple):
    """A route's way into a loop: each step takes its slice of the parameter, or all of it."""

    kind: str
    length: int


class Combination(NamedTuple):
    """Where a route passes an equation of parameters alone that does more than rearrange."""

    eqn: JaxprEqn
    operand: int
    # Of a product: the number of the other parameter, and its route.
    other: Any = None


View = tuple[JaxprEqn | LoopEntry | Combination, ...]
Region = tuple[tuple[int, int], ...]  # from and to, in each dimension of the parameter


def passes_on(eqn: JaxprEqn) -> bool:
    """Whether an equation hands a parameter on as a rearrangement of itself or of a part of it."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        aval: Any = eqn.outvars[0].aval
        return bool(jnp.issubdtype(aval.dtype, jnp.floating))
    if name == "reshape":
        return eqn.params["dimensions"] is None  # else it permutes as well
    if name == "broadcast_in_dim":  # which adds dimensions of size 1 only
        return math.prod(shape_of(eqn.invars[0])) == math.prod(shape_of(eqn.outvars[0]))
    return name in IDENTITIES or name in SQUEEZES or name in ("transpose", "rev", "slice")


def loops_of(route: View) -> Loops:
    """The loops that a route enters, the outermost first."""
    return tuple((step.kind, step.length) for step in route if isinstance(step, LoopEntry))


def split(route: View) -> tuple[View, list[tuple[Combination, View]]]:
    """The rearrangements at the start, and every turn with the rearrangements behind it."""
    parts: list[tuple[Combination, View]] = []
    for i in reversed(range(len(route))):
        step = route[i]
        if isinstance(step, Combination):
            parts.insert(0, (step, route[i + 1 :]))
            route = route[:i]
    return route, parts


def pull_back(route: View, gradient: jax.Array) -> jax.Array:
    """Carries a gradient from the operand, behind the dimensions of loops, to the parameter."""
    lead = sum(kind == SEPARATE for kind, _ in loops_of(route))
    for step in reversed(route):
        if isinstance(step, LoopEntry):
            lead -= step.kind == SEPARATE
            continue
        if isinstance(step, Combination):
            raise ValueError("a gradient is pulled back from before the first turn")
        name = step.primitive.name
        before: Any = step.invars[0].aval
        front = gradient.shape[:lead]
        if name == "transpose":
            back = [lead + i for i in np.argsort(step.params["permutation"])]
            gradient = jnp.transpose(gradient, (*range(lead), *back))
        elif name == "rev":
            gradient = jax.lax.rev(gradient, [lead + i for i in step.params["dimensions"]])
        elif name == "slice":
            gradient = _unsliced(step, gradient, lead)
        else:
            gradient = gradient.reshape(*front, *before.shape)
    return gradient


def _unsliced(eqn: JaxprEqn, gradient: jax.Array, lead: int) -> jax.Array:
    """A gradient put back to where the slice was taken from, zeros around."""
    before: Any = eqn.invars[0].aval
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    room = [(0, 0, 0)] * lead
    for axis, (start, stride, full) in enumerate(zip(starts, strides, before.shape, strict=True)):
        reach = start + (gradient.shape[lead + axis] - 1) * stride + 1
        room.append((start, full - reach, stride - 1))
    return jax.lax.pad(gradient, jnp.zeros((), gradient.dtype), room)


def dimensions(route: View, shape: Sequence[int]) -> tuple[tuple[int | None, ...] | None, Region]:
    """Which dimension of the parameter each one of the operand is, and the part that is used.

    None for a dimension of size 1; no dimensions at all where a reshape mixes them.
    """
    places, box, _ = followed(route, shape)
    return places, box


class _ViewDimensions(NamedTuple):
    places: tuple[int | None, ...] | None
    box: Region
    entered: tuple[int | None, ...]  # the dimension that the steps of each loop take apart


def followed(route: View, shape: Sequence[int]) -> _ViewDimensions:
    """`dimensions`, and those that loops have taken."""
    box = [(0, size) for size in shape]
    places: list[int | None] | None = list(range(len(shape)))
    entered: list[int | None] = []
    for step in route:
        if places is None or isinstance(step, Combination):
            places = None
            break
        if isinstance(step, LoopEntry):
            if step.kind == SEPARATE:
                first, *places = places
                entered.append(first)
            continue
        name, after = step.primitive.name, shape_of(step.outvars[0])
        if name == "transpose":
            places = [places[i] for i in step.params["permutation"]]
        elif name == "slice":
            starts, limits = step.params["start_indices"], step.params["limit_indices"]
            strides = step.params["strides"] or (1,) * len(starts)
            for i, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
                place = places[i]
                if place is not None:
                    first = box[place][0]
                    box[place] = (first + start, first + limit)
                    # What is cut from every second row, say, is not followed further.
                    places[i] = place if stride == 1 else None
        elif name == "rev":
            if any(places[i] is not None for i in step.params["dimensions"]):
                places = None
        elif name in ("reshape", "broadcast_in_dim") or name in SQUEEZES:
            places = _without_ones(places, shape_of(step.invars[0]), after)
    return _ViewDimensions(None if places is None else tuple(places), tuple(box), tuple(entered))


def _without_ones(
    places: Sequence[int | None], before: Sequence[int], after: Sequence[int]
) -> list[int | None] | None:
    """The dimensions after a reshape that only adds or drops dimensions of size 1."""
    if [n for n in before if n != 1] != [n for n in after if n != 1]:
        return None
    left = iter(p for p, n in zip(places, before, strict=True) if n != 1)
    return [next(left) if n != 1 else None for n in after]


def apart(one: Region, other: Region) -> bool:
    """Whether two parts of a parameter have nothing in common."""
    pairs = zip(one, other, strict=True)
    return any(a[1] <= b[0] or b[1] <= a[0] for a, b in pairs)


def whole(box: Region, shape: Sequence[int]) -> bool:
    return all(part == (0, size) for part, size in zip(box, shape, strict=True))


def shape_of(var: Any) -> tuple[int, ...]:
    return tuple(var.aval.shape)
