"""Views: how a parameter reaches an operand when it is only rearranged on the way.

Casts, sharding constraints, transposes, reshapes, slices and loop entries rearrange a parameter, so
the gradient at the end of a view has the same norm as the gradient at its start. A view may also
pass combinations, where the parameter is combined with others (`combinations.py`).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from bevel.clipping.norms.registry import SEPARATE, Loops

# Equations that leave the entries of a parameter as they are.
# `pvary` is not one of them: the gradients of shards that share a parameter add.
IDENTITIES = {"convert_element_type", "copy", "copy_p", "sharding_constraint", "reshard"}
SQUEEZES = {"squeeze", "expand_dims"}


class LoopEntry(NamedTuple):
    """A view enters a loop: each step reads its own slice of the parameter, or all of it."""

    kind: str
    length: int


class Combination(NamedTuple):
    """A view passes an equation that combines parameters with each other."""

    eqn: JaxprEqn
    operand: int
    # For a product: the number of the other parameter, and its view.
    other: Any = None


View = tuple[JaxprEqn | LoopEntry | Combination, ...]
Region = tuple[tuple[int, int], ...]  # (start, stop) in each dimension of the parameter


def rearranges(eqn: JaxprEqn) -> bool:
    """Whether an equation only rearranges its operand, or a part of it."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        aval: Any = eqn.outvars[0].aval
        return bool(jnp.issubdtype(aval.dtype, jnp.floating))
    if name == "reshape":
        return eqn.params["dimensions"] is None  # otherwise it permutes as well
    if name == "broadcast_in_dim":  # only where it adds dimensions of size 1
        return math.prod(shape_of(eqn.invars[0])) == math.prod(shape_of(eqn.outvars[0]))
    return name in IDENTITIES or name in SQUEEZES or name in ("transpose", "rev", "slice")


def itemsize_in_loop(view: View) -> int:
    """The most bytes per number of what a view casts or rearranges inside loops; 0 for nothing."""
    entries = [i for i, step in enumerate(view) if isinstance(step, LoopEntry)]
    inside = view[entries[0] :] if entries else ()
    read: list[Any] = [step.invars[0].aval for step in inside if isinstance(step, JaxprEqn)]
    return max((aval.dtype.itemsize for aval in read), default=0)


def loops_of(view: View) -> Loops:
    """The loops that a view enters, outermost first."""
    return tuple((step.kind, step.length) for step in view if isinstance(step, LoopEntry))


def is_one_slice_per_step(view: View) -> bool:
    """Whether each step of one loop reads its own slice of the parameter, as it is."""
    steps = [step for step in view if not isinstance(step, LoopEntry)]
    as_it_is = all(
        not isinstance(step, Combination) and step.primitive.name in IDENTITIES for step in steps
    )
    return as_it_is and [kind for kind, _ in loops_of(view)] == [SEPARATE]


def split_at_combinations(view: View) -> tuple[View, list[tuple[Combination, View]]]:
    """The view before the first combination, and each combination with the view that follows it."""
    parts: list[tuple[Combination, View]] = []
    for i in reversed(range(len(view))):
        step = view[i]
        if isinstance(step, Combination):
            parts.insert(0, (step, view[i + 1 :]))
            view = view[:i]
    return view, parts


def pull_back(view: View, gradient: jax.Array) -> jax.Array:
    """Carries a gradient of the operand, whose leading dimensions are loops, to the parameter."""
    lead = sum(kind == SEPARATE for kind, _ in loops_of(view))
    for step in reversed(view):
        if isinstance(step, LoopEntry):
            lead -= step.kind == SEPARATE
            continue
        if isinstance(step, Combination):
            raise ValueError("pull_back takes the part of a view before its first combination")
        name = step.primitive.name
        before: Any = step.invars[0].aval
        lead_shape = gradient.shape[:lead]
        if name == "transpose":
            inverse = [lead + i for i in np.argsort(step.params["permutation"])]
            gradient = jnp.transpose(gradient, (*range(lead), *inverse))
        elif name == "rev":
            gradient = jax.lax.rev(gradient, [lead + i for i in step.params["dimensions"]])
        elif name == "slice":
            gradient = _transpose_slice(step, gradient, lead)
        else:
            gradient = gradient.reshape(*lead_shape, *before.shape)
    return gradient


def _transpose_slice(eqn: JaxprEqn, gradient: jax.Array, lead: int) -> jax.Array:
    """Puts a gradient back where the slice was taken, with zeros around it."""
    before: Any = eqn.invars[0].aval
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    padding = [(0, 0, 0)] * lead
    for axis, (start, stride, full) in enumerate(zip(starts, strides, before.shape, strict=True)):
        stop = start + (gradient.shape[lead + axis] - 1) * stride + 1
        padding.append((start, full - stop, stride - 1))
    return jax.lax.pad(gradient, jnp.zeros((), gradient.dtype), padding)


def dimensions(view: View, shape: Sequence[int]) -> tuple[tuple[int | None, ...] | None, Region]:
    """The dimension of the parameter behind each dimension of the operand, and the region used.

    A dimension of size 1 is None. The first result is None where a reshape mixes dimensions.
    """
    dims, region, _ = track_dimensions(view, shape)
    return dims, region


class _ViewDimensions(NamedTuple):
    dims: tuple[int | None, ...] | None
    region: Region
    loop_dims: tuple[int | None, ...]  # the dimension that each loop slices


def track_dimensions(view: View, shape: Sequence[int]) -> _ViewDimensions:
    """As `dimensions`, with the dimensions that loops slice."""
    region = [(0, size) for size in shape]
    dims: list[int | None] | None = list(range(len(shape)))
    loop_dims: list[int | None] = []
    for step in view:
        if dims is None or isinstance(step, Combination):
            dims = None
            break
        if isinstance(step, LoopEntry):
            if step.kind == SEPARATE:
                first, *dims = dims
                loop_dims.append(first)
            continue
        name, after = step.primitive.name, shape_of(step.outvars[0])
        if name == "transpose":
            dims = [dims[i] for i in step.params["permutation"]]
        elif name == "slice":
            starts, limits = step.params["start_indices"], step.params["limit_indices"]
            strides = step.params["strides"] or (1,) * len(starts)
            for i, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
                dim = dims[i]
                if dim is not None:
                    first = region[dim][0]
                    region[dim] = (first + start, first + limit)
                    # A strided slice is not tracked further.
                    dims[i] = dim if stride == 1 else None
        elif name == "rev":
            if any(dims[i] is not None for i in step.params["dimensions"]):
                dims = None
        elif name in ("reshape", "broadcast_in_dim") or name in SQUEEZES:
            dims = _reshaped_dims(dims, shape_of(step.invars[0]), after)
    return _ViewDimensions(None if dims is None else tuple(dims), tuple(region), tuple(loop_dims))


def _reshaped_dims(
    dims: Sequence[int | None], before: Sequence[int], after: Sequence[int]
) -> list[int | None] | None:
    """The dimensions after a reshape, or None if it does more than add or drop sizes of 1."""
    if [n for n in before if n != 1] != [n for n in after if n != 1]:
        return None
    remaining = iter(dim for dim, n in zip(dims, before, strict=True) if n != 1)
    return [next(remaining) if n != 1 else None for n in after]


def disjoint(one: Region, other: Region) -> bool:
    """Whether two regions of a parameter have no entry in common."""
    pairs = zip(one, other, strict=True)
    return any(a[1] <= b[0] or b[1] <= a[0] for a, b in pairs)


def covers(region: Region, shape: Sequence[int]) -> bool:
    """Whether a region is the whole parameter."""
    return all(part == (0, size) for part, size in zip(region, shape, strict=True))


def shape_of(var: Any) -> tuple[int, ...]:
    return tuple(var.aval.shape)
