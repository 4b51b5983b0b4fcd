"""Combinations: parameters combined with each other before an example is involved.

    concatenated:  W = [A | B]    the gradient of A is a part of that of W (likewise for a stack)
    multiplied:    W = A B        sum_t l_t (x) r_t   becomes   sum_t l_t (x) (B r_t)   for A
    scaled:        W = s A

The gradient remains a sum of outer products, so nothing of the size of W is formed per example: a
low-rank pair costs the same whether the model merges it into its matrix or applies it separately.
The norm and the sum are computed from the same vectors, so they see the same rounding.
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
    covers,
    loops_of,
    shape_of,
    track_dimensions,
)

# Equations that concatenate their operands, and the parameter that holds the axis.
CONCATENATIONS = {"concatenate": "dimension", "stack": "axis"}
SCALINGS = {"mul", "div", "neg"}
SHARDING_REQUESTS = {"sharding_constraint", "reshard"}
UNKNOWN = 1000  # dimensions of size 1 are numbered from here on


class UnsupportedUseError(Exception):
    """The gradient before a combination cannot be written as a sum of outer products."""


def combination_at(eqn: JaxprEqn, operand: int, other: Any) -> Combination | None:
    """The combination that an equation of parameters makes with one operand, or None.

    `other` is `(number, view)` of the parameter at the other operand, if that is a single one.
    """
    name = eqn.primitive.name
    if name in CONCATENATIONS:
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
    """Whether an equation adds the operand to others, so its gradient is that of the sum."""
    shapes = {shape_of(v) for v in (*eqn.invars, *eqn.outvars)}
    name = eqn.primitive.name
    return len(shapes) == 1 and (name in ("add", "add_any") or (name == "sub" and operand == 0))


def _is_number(var: Any) -> bool:
    return isinstance(var, Literal) and math.prod(shape_of(var)) == 1


def pull_back_combinations(
    view: View,
    combinations: Sequence[tuple[Combination, View]],
    gradient: OuterProducts,
    params: Sequence[Any],
) -> OuterProducts:
    """The gradient of the first combination's operand, from that of the last operand."""
    loops = loops_of(view)
    for combination, following in reversed(combinations):
        gradient = _with_result_dims(gradient, following, shape_of(combination.eqn.outvars[0]))
        name = combination.eqn.primitive.name
        loops = loops[: len(loops) - len(loops_of(following))]
        if name in CONCATENATIONS:
            gradient = _part_of_concatenation(combination, gradient)
        elif name == "dot_general":
            gradient = _multiplied(combination, gradient, loops, params)
        else:
            gradient = _scaled(combination, gradient)
    return gradient


def _with_result_dims(
    gradient: OuterProducts, following: View, shape: Sequence[int]
) -> OuterProducts:
    """Numbers the gradient's dimensions by those of a combination's result, not of the operand."""
    result_dims, region, loop_dims = track_dimensions(following, shape)
    if result_dims is None or not covers(region, shape):
        raise UnsupportedUseError
    loops = [i for i, dim in enumerate(gradient.dims) if dim is None]
    sliced = dict(zip(loops[len(loops) - len(loop_dims) :], loop_dims, strict=True))

    def renumbered(i: int, dim: int | None) -> int | None:
        if dim is None:
            return sliced.get(i)
        result = result_dims[dim] if dim < UNKNOWN else None
        return UNKNOWN + i if result is None else result

    dims = tuple(renumbered(i, dim) for i, dim in enumerate(gradient.dims))
    return dataclasses.replace(gradient, dims=dims)


def _part_of_concatenation(combination: Combination, gradient: OuterProducts) -> OuterProducts:
    """The part of the gradient of a concatenation or stack that belongs to one operand."""
    eqn, operand = combination.eqn, combination.operand
    name = eqn.primitive.name
    axis = eqn.params[CONCATENATIONS[name]]
    if name == "stack":
        part = _slice(gradient, axis, operand, operand + 1)
        at = part.dims.index(axis)
        # The operand does not have the stacked dimension.
        lowered = [d if d is None or not axis < d < UNKNOWN else d - 1 for d in part.dims]
        return dataclasses.replace(part, dims=(*lowered[:at], UNKNOWN, *lowered[at + 1 :]))
    sizes = [shape_of(v)[axis] for v in eqn.invars]
    start = sum(sizes[:operand])
    return _slice(gradient, axis, start, start + sizes[operand])


def _slice(gradient: OuterProducts, axis: int, start: int, stop: int) -> OuterProducts:
    """From `start` to `stop` along one dimension of the gradient."""
    if axis not in gradient.dims:
        raise UnsupportedUseError
    at, first = gradient.dims.index(axis), 1 + gradient.separate + gradient.rows
    left, right = gradient.left, gradient.right

    def part(side: Side, axis: int) -> jax.Array:
        return jax.lax.slice_in_dim(side.values, start, stop, axis=axis)

    if at < gradient.separate:
        left, right = (
            dataclasses.replace(side, values=part(side, 1 + at)) for side in (left, right)
        )
        return dataclasses.replace(gradient, left=left, right=right)
    at -= gradient.separate
    on_left = at < len(left.entries)
    side, at = (left, at) if on_left else (right, at - len(left.entries))
    if side.one_hot:
        raise UnsupportedUseError
    entries = (*side.entries[:at], stop - start, *side.entries[at + 1 :])
    side = Side(part(side, first + at), entries)
    if on_left:
        return dataclasses.replace(gradient, left=side)
    return dataclasses.replace(gradient, right=side)


def _scaled(combination: Combination, gradient: OuterProducts) -> OuterProducts:
    name = combination.eqn.primitive.name
    factor = -1.0  # for neg, and for the second operand of sub
    if name in ("mul", "div"):
        (number,) = (float(v.val) for v in combination.eqn.invars if isinstance(v, Literal))
        factor = number if name == "mul" else 1 / number
    side = gradient.right
    values = side.values * jnp.asarray(factor, side.values.dtype)
    return dataclasses.replace(gradient, right=dataclasses.replace(side, values=values))


def _multiplied(
    combination: Combination, gradient: OuterProducts, loops: Loops, params: Sequence[Any]
) -> OuterProducts:
    """Multiplies the side that runs over the other factor's free dimensions by that factor."""
    eqn, own, theirs = combination.eqn, combination.operand, 1 - combination.operand
    contracting = eqn.params["dimension_numbers"][0]
    free = [
        [d for d in range(len(shape_of(v))) if d not in over]
        for v, over in zip(eqn.invars, contracting, strict=True)
    ]
    first = [0, len(free[0])]
    # Maps dimensions of the product to those of its factors.
    of_own = {first[own] + i: d for i, d in enumerate(free[own])}
    of_theirs = {first[theirs] + i: d for i, d in enumerate(free[theirs])}
    name, dims = _side_over(gradient, set(of_theirs))
    side: Side = getattr(gradient, name)

    number, view = combination.other
    entries = [step for step in view if isinstance(step, LoopEntry)]
    if len(entries) != len(loops):
        raise UnsupportedUseError
    # Axis names for einsum: the leading dimensions of the vectors, 100 + a dimension of the
    # product, 200 + a contracted dimension.
    axes = [*range(side.values.ndim - len(dims)), *(100 + dim for dim in dims)]
    at = {SEPARATE: 1, "shared": 1 + gradient.separate}
    factor_axes = []
    for (kind, _), entry in zip(loops, entries, strict=True):
        if entry.kind == SEPARATE:
            factor_axes.append(at[kind])
        at[kind] += 1
    free_axes = {d: 100 + dim for dim, d in of_theirs.items()}
    pairs = dict(zip(contracting[theirs], contracting[own], strict=True))
    factor_axes += [
        free_axes[d] if d in free_axes else 200 + pairs[d]
        for d in range(len(shape_of(eqn.invars[theirs])))
    ]
    result = sorted(contracting[own])
    values = jnp.einsum(
        side.values,
        axes,
        apply_view(view, params[number]).astype(side.values.dtype),
        factor_axes,
        [*axes[: len(axes) - len(dims)], *(200 + d for d in result)],
        precision=gradient.multiplier.precision,
        preferred_element_type=precision.accumulation_dtype(side.values.dtype),
    )
    sizes = tuple(shape_of(eqn.invars[own])[d] for d in result)
    product = Side(values.astype(side.values.dtype), sizes)

    def of_factor(dims: Sequence[int | None]) -> list[int | None]:
        return [dim if dim is None or dim >= UNKNOWN else of_own[dim] for dim in dims]

    separate = of_factor(gradient.dims[: gradient.separate])
    if name == "left":
        sides = [*result, *of_factor(gradient.right_dims)]
    else:
        sides = [*of_factor(gradient.left_dims), *result]
    changed: dict[str, Any] = {name: product, "dims": (*separate, *sides)}
    return dataclasses.replace(gradient, **changed)


def _side_over(gradient: OuterProducts, wanted: set[int]) -> tuple[str, Sequence[int]]:
    """The side whose vectors run over exactly these dimensions."""
    if set(gradient.dims[: gradient.separate]) & wanted:
        raise UnsupportedUseError
    for name, dims in (("left", gradient.left_dims), ("right", gradient.right_dims)):
        known = [dim for dim in dims if dim is not None]
        if set(known) == wanted and len(known) == len(dims) and not getattr(gradient, name).one_hot:
            return name, known
    raise UnsupportedUseError


def apply_view(view: View, param: Any) -> jax.Array:
    """The parameter as a view without combinations shows it, with loop dimensions in front."""
    lead = 0
    for step in view:
        if isinstance(step, LoopEntry):
            lead += step.kind == SEPARATE
        elif not isinstance(step, Combination) and step.primitive.name not in SHARDING_REQUESTS:

            def rearranged(x: Any, step: JaxprEqn = step) -> Any:
                return bind(step, [x], in_its_context=False)[0]

            for _ in range(lead):
                rearranged = jax.vmap(rearranged)
            param = rearranged(param)
    return param


def sizes_of(gradient: OuterProducts) -> GradientSizes:
    """The sizes of one example's gradient."""
    shape = gradient.right.values.shape
    middle = 1 + gradient.separate
    return GradientSizes(
        math.prod(shape[1:middle]),
        math.prod(shape[middle : middle + gradient.rows]),
        gradient.left.size,
        gradient.right.size,
        gradient.left.one_hot,
    )
