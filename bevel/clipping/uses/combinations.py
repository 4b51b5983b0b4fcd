"""Turns: what joins parameters with each other before an example is met, and the way back.

    concatenated:  W = [A | B]    the gradient of A is a part of that of W; stacked as well
    multiplied:    W = A B        sum_t l_t (x) r_t   is   sum_t l_t (x) (B r_t)   for A
    scaled:        W = s A

A sum of outer products stays one, so nothing of the size of W is formed for an example: a low-rank
pair that is merged into its matrix costs what it costs beside it. Norm and sum see the same
vectors, so a rounding here cannot come between them.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal

from bevel import precision
from bevel.clipping.norms.outer_products import OuterProducts, Side
from bevel.clipping.norms.registry import SEPARATE, GradientSizes, Loops
from bevel.clipping.program.equations import bind
from bevel.clipping.uses.views import (
    Combination,
    LoopEntry,
    View,
    followed,
    loops_of,
    shape_of,
    whole,
)

# Equations that lay their operands side by side, and the parameter that says where.
JOINS = {"concatenate": "dimension", "stack": "axis"}
SCALINGS = {"mul", "div", "neg"}
PLACINGS = {"sharding_constraint", "reshard"}
UNKNOWN = 1000  # dimensions of size 1 are numbered from here


class NotUnderstoodError(Exception):
    """The gradient behind a turn is no sum of outer products."""


def combination_at(eqn: JaxprEqn, operand: int, other: Any) -> Combination | None:
    """How a parameter passes an equation whose inputs are all parameters, or None.

    `other`: the parameter at the other operand, (number, route), if it is one alone.
    """
    name = eqn.primitive.name
    if name in JOINS:
        return Combination(eqn, operand)
    if name in SCALINGS and operand == 0 and all(map(_is_number, eqn.invars[1:])):
        return Combination(eqn, operand)
    if name == "mul" and _is_number(eqn.invars[0]):
        return Combination(eqn, operand)
    if name == "sub" and shape_of(eqn.invars[1]) == shape_of(eqn.outvars[0]):
        return Combination(eqn, operand)
    if name == "dot_general" and other is not None:
        _, batch = eqn.params["dimension_numbers"]
        simple = not any(isinstance(step, Combination) for step in other[1])
        return Combination(eqn, operand, other) if simple and not any(batch) else None
    return None


def adds(eqn: JaxprEqn, operand: int) -> bool:
    """Whether an equation adds the operand to others: its gradient is that of the sum."""
    shapes = {shape_of(v) for v in (*eqn.invars, *eqn.outvars)}
    name = eqn.primitive.name
    return len(shapes) == 1 and (name in ("add", "add_any") or (name == "sub" and operand == 0))


def _is_number(var: Any) -> bool:
    return isinstance(var, Literal) and math.prod(shape_of(var)) == 1


def pull_back_combinations(
    route: View,
    turns: Sequence[tuple[Combination, View]],
    gradient: OuterProducts,
    params: Sequence[Any],
) -> OuterProducts:
    """The gradient with respect to what the first turn takes, from that of the last operand."""
    loops = loops_of(route)
    for turn, behind in reversed(turns):
        gradient = _labelled(gradient, behind, shape_of(turn.eqn.outvars[0]))
        name = turn.eqn.primitive.name
        if name in JOINS:
            gradient = _narrowed(turn, gradient)
        elif name == "dot_general":
            outer = loops[: len(loops) - len(loops_of(behind))]
            gradient = _multiplied(turn, gradient, outer, params)
        else:
            gradient = _scaled(turn, gradient)
        loops = loops[: len(loops) - len(loops_of(behind))]
    return gradient


def _labelled(gradient: OuterProducts, behind: View, shape: Sequence[int]) -> OuterProducts:
    """With the dimensions of a turn's result in the places of those of the operand."""
    places, box, entered = followed(behind, shape)
    if places is None or not whole(box, shape):
        raise NotUnderstoodError
    loops = [i for i, place in enumerate(gradient.places) if place is None]
    taken = dict(zip(loops[len(loops) - len(entered) :], entered, strict=True))

    def label(i: int, place: int | None) -> int | None:
        if place is None:
            return taken.get(i)
        found = places[place] if place < UNKNOWN else None
        return UNKNOWN + i if found is None else found

    labels = tuple(label(i, place) for i, place in enumerate(gradient.places))
    return dataclasses.replace(gradient, places=labels)


def _narrowed(turn: Combination, gradient: OuterProducts) -> OuterProducts:
    """The part of a concatenation, or of a stack, that its operand is."""
    name = turn.eqn.primitive.name
    axis = turn.eqn.params[JOINS[name]]
    if name == "stack":
        found = _part_of(gradient, axis, turn.operand, turn.operand + 1)
        at = found.places.index(axis)
        # The operand does not have that dimension.
        below = [p if p is None or not axis < p < UNKNOWN else p - 1 for p in found.places]
        places = (*below[:at], UNKNOWN, *below[at + 1 :])
        return dataclasses.replace(found, places=places)
    sizes = [shape_of(v)[axis] for v in turn.eqn.invars]
    start = sum(sizes[: turn.operand])
    return _part_of(gradient, axis, start, start + sizes[turn.operand])


def _part_of(gradient: OuterProducts, axis: int, start: int, stop: int) -> OuterProducts:
    """From `start` to `stop` along one dimension of the gradient."""
    if axis not in gradient.places:
        raise NotUnderstoodError
    place, first = gradient.places.index(axis), 1 + gradient.separate + gradient.rows
    left, right = gradient.left, gradient.right

    def part(side: Side, at: int) -> jax.Array:
        return jax.lax.slice_in_dim(side.values, start, stop, axis=at)

    if place < gradient.separate:
        left, right = (
            dataclasses.replace(side, values=part(side, 1 + place)) for side in (left, right)
        )
        return dataclasses.replace(gradient, left=left, right=right)
    place -= gradient.separate
    on_left = place < len(left.entries)
    side, place = (left, place) if on_left else (right, place - len(left.entries))
    if side.unit:
        raise NotUnderstoodError
    entries = (*side.entries[:place], stop - start, *side.entries[place + 1 :])
    side = Side(part(side, first + place), entries)
    if on_left:
        return dataclasses.replace(gradient, left=side)
    return dataclasses.replace(gradient, right=side)


def _scaled(turn: Combination, gradient: OuterProducts) -> OuterProducts:
    name = turn.eqn.primitive.name
    factor = -1.0  # of neg, and of what is subtracted
    if name in ("mul", "div"):
        (number,) = (float(v.val) for v in turn.eqn.invars if isinstance(v, Literal))
        factor = number if name == "mul" else 1 / number
    side = gradient.right
    values = side.values * jnp.asarray(factor, side.values.dtype)
    return dataclasses.replace(gradient, right=dataclasses.replace(side, values=values))


def _multiplied(
    turn: Combination, gradient: OuterProducts, loops: Loops, params: Sequence[Any]
) -> OuterProducts:
    """The vectors of one side times the other factor, whose free dimensions they run over."""
    eqn, own, theirs = turn.eqn, turn.operand, 1 - turn.operand
    contracting = eqn.params["dimension_numbers"][0]
    free = [
        [d for d in range(len(shape_of(v))) if d not in over]
        for v, over in zip(eqn.invars, contracting, strict=True)
    ]
    first = [0, len(free[0])]
    # From dimensions of the product to those of its factors.
    of_own = {first[own] + i: d for i, d in enumerate(free[own])}
    of_theirs = {first[theirs] + i: d for i, d in enumerate(free[theirs])}
    name, labels = _side_over(gradient, set(of_theirs))
    side: Side = getattr(gradient, name)

    number, route = turn.other
    entries = [step for step in route if isinstance(step, LoopEntry)]
    if len(entries) != len(loops):
        raise NotUnderstoodError
    # Named dimensions: those of the vectors, 100 + those of the product, 200 + those contracted.
    axes = [*range(side.values.ndim - len(labels)), *(100 + label for label in labels)]
    at = {SEPARATE: 1, "shared": 1 + gradient.separate}
    factor_axes = []
    for (kind, _), entry in zip(loops, entries, strict=True):
        if entry.kind == SEPARATE:
            factor_axes.append(at[kind])
        at[kind] += 1
    back = {d: 100 + label for label, d in of_theirs.items()}
    pairs = dict(zip(contracting[theirs], contracting[own], strict=True))
    dims = range(len(shape_of(eqn.invars[theirs])))
    factor_axes += [back[d] if d in back else 200 + pairs[d] for d in dims]
    result = sorted(contracting[own])
    values = jnp.einsum(
        side.values,
        axes,
        value(route, params[number]).astype(side.values.dtype),
        factor_axes,
        [*axes[: len(axes) - len(labels)], *(200 + d for d in result)],
        precision=gradient.multiplier.precision,
        preferred_element_type=precision.accumulation_dtype(side.values.dtype),
    )
    sizes = tuple(shape_of(eqn.invars[own])[d] for d in result)
    turned = Side(values.astype(side.values.dtype), sizes)

    def places(labels: Sequence[int | None]) -> list[int | None]:
        return [label if label is None or label >= UNKNOWN else of_own[label] for label in labels]

    apart = places(gradient.places[: gradient.separate])
    if name == "left":
        sides = [*result, *places(gradient.right_places)]
    else:
        sides = [*places(gradient.left_places), *result]
    changed: dict[str, Any] = {name: turned, "places": (*apart, *sides)}
    return dataclasses.replace(gradient, **changed)


def _side_over(gradient: OuterProducts, wanted: set[int]) -> tuple[str, Sequence[int]]:
    """The side whose vectors run over just these dimensions."""
    for name, labels in (("left", gradient.left_places), ("right", gradient.right_places)):
        known = [label for label in labels if label is not None]
        if set(known) == wanted and len(known) == len(labels) and not getattr(gradient, name).unit:
            elsewhere = set(gradient.places[: gradient.separate]) & wanted
            if not elsewhere:
                return name, known
    raise NotUnderstoodError


def value(route: View, param: Any) -> jax.Array:
    """What a parameter is at the end of a route of rearrangements, behind dimensions of loops."""
    lead = 0
    for step in route:
        if isinstance(step, LoopEntry):
            lead += step.kind == SEPARATE
        elif not isinstance(step, Combination) and step.primitive.name not in PLACINGS:

            def rearranged(x: Any, step: JaxprEqn = step) -> Any:
                return bind(step, [x], in_its_context=False)[0]

            for _ in range(lead):
                rearranged = jax.vmap(rearranged)
            param = rearranged(param)
    return param


def sizes_of(gradient: OuterProducts) -> GradientSizes:
    """Of one example, from the shapes of a gradient that is not formed."""
    shape = gradient.right.values.shape
    middle = 1 + gradient.separate
    return GradientSizes(
        math.prod(shape[1:middle]),
        math.prod(shape[middle : middle + gradient.rows]),
        gradient.left.size,
        gradient.right.size,
        gradient.left.unit,
    )
