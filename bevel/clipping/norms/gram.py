"""The Gram form: the square of a norm from inner products of rows, and what bounds its rounding.

    |sum_t l_t (x) r_t|^2 = sum_{t,s} Gl[t,s] Gr[t,s],    Gl[t,s] = l_t . l_s,  Gr[t,s] = r_t . r_s

A vector that a mesh has cut into pieces has a Gram matrix for each: their sums cross the mesh as
one number per example, where the matrices themselves would cross it whole.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.norms.kernels import gram_kernel
from bevel.clipping.norms.scaling import SMALLEST_SQUARE, root, scale_back, scale_to_one

# With fewer rows than this the kernel has too little to do.
KERNEL_ROWS = 64
# What rounding may add to a norm: a form that may add more is not taken, if there is another.
WORST_SLACK = 0.05
# The cosine of two rows of values, as after a rectifier; rows of gradients are at random angles.
LEANING = 0.2


class Sums(NamedTuple):
    """What bounds a norm, all (B,)."""

    square: jax.Array  # of the norm
    error: jax.Array  # of the square, at most
    moved: jax.Array  # how far rounding moves what is summed, at most
    absolute: jax.Array  # A, the sum of the lengths of the terms
    left: jax.Array  # trace of the left Gram matrix
    right: jax.Array  # and of the right one


class Sides(NamedTuple):
    left: Any
    right: Any


class _Pairs(NamedTuple):
    """Sums over the pairs of rows of one use, (B, separate...) and further dimensions."""

    square: jax.Array  # of Gl Gr
    squares: Sides  # of Gl^2 and Gr^2, for each piece
    traces: Sides
    lengths: jax.Array  # sum_t |l_t| |r_t|
    sizes: Sides | None = None  # of |Gl| and |Gr|, for each piece
    longest: Sides | None = None  # |l_t|^2 and |r_t|^2, at most


def over_products(left: jax.Array, right: jax.Array, apart: int, rows: int) -> jax.Array:
    """`sum Gl Gr` from Gram matrices (B, separate..., pieces, rows...), of one use or of two."""
    pairs = jnp.expand_dims(left, apart + 1) * jnp.expand_dims(right, apart)
    return jnp.sum(over_rows(pairs, rows), axis=(apart, apart + 1))


@functools.partial(jax.jit, static_argnames=("apart", "rows"))  # the same for many parameters
def over_matrices(left: jax.Array, right: jax.Array, apart: int, rows: int) -> _Pairs:
    """From Gram matrices (B, separate..., pieces, rows..., rows...) of one use."""
    diagonals = [diagonal(gram, rows) for gram in (left, right)]
    # Of a vector in pieces, the length is at most the sum of theirs.
    lengths = [jnp.sum(root(d), axis=apart) for d in diagonals]
    most = [jnp.max(d, axis=tuple(range(apart + 1, d.ndim))) for d in diagonals]
    return _Pairs(
        over_products(left, right, apart, 2 * rows),
        Sides(*(over_rows(gram * gram, 2 * rows) for gram in (left, right))),
        Sides(*(over(d, apart) for d in diagonals)),
        over(lengths[0] * lengths[1], apart),
        Sides(*(over_rows(jnp.abs(gram), 2 * rows) for gram in (left, right))),
        Sides(*(jnp.sum(m, axis=apart) for m in most)),
    )


def by_kernel(left: jax.Array, right: jax.Array, apart: int, rows: int, tf32: bool) -> _Pairs:
    """From vectors (B, separate..., rows..., entries...), without the matrices."""
    lead = left.shape[:apart]
    count = math.prod(left.shape[apart : apart + rows])
    h, g = (x.reshape(math.prod(lead), count, -1) for x in (left, right))
    sums = gram_kernel.gram_sums(h, g, tf32=tf32)
    found = [x.reshape(lead) for x in sums]
    square, left_square, right_square, left_trace, right_trace, lengths = found
    squares = Sides(left_square[..., None], right_square[..., None])
    return _Pairs(square, squares, Sides(left_trace, right_trace), lengths)


class Rounding(NamedTuple):
    """Of Gram matrices: how far each entry may be off, relative to the lengths of its rows."""

    growth: Sides
    summed: float  # of a sum over all pairs
    rows: float


@functools.partial(jax.jit, static_argnames="sides")  # the same for many parameters
def bound(
    uses: Sequence[_Pairs],
    across: jax.Array,
    rounding: Rounding,
    roundoffs: Sequence[float],
    sides: tuple[str, ...],
) -> Sums:
    """What bounds the norm, from the pairs of rows of each use, and their sum across uses.

    With U and V the rows of two uses, |U V^T|^2 <= |U U^T| |V V^T|: the Gram matrix of all rows
    has no larger Frobenius norm than those of the uses together.

    `roundoffs`, `sides`: of each use's operands, and the side that takes the coefficient.
    """
    apart = uses[0].square.ndim
    trace = Sides(*(sum(p.traces[i] for p in uses) for i in range(2)))
    summed = rounding.summed
    least = rounding.rows**2 * SMALLEST_SQUARE  # what may have been lost of the squares
    frobenius = [
        sum(jnp.sum(root(p.squares[i] + least), axis=apart) for p in uses) * (1 + summed)
        + rounding.growth[i] * trace[i]
        for i in range(2)
    ]
    error = summed * frobenius[0] * frobenius[1]
    for i in range(2):
        off = trace[i] * frobenius[1 - i]
        (only, *more) = uses
        if not more and only.sizes is not None and only.longest is not None:
            size = jnp.sum(only.sizes[1 - i], axis=apart) * (1 + summed)
            size += rounding.growth[1 - i] * rounding.rows * trace[1 - i]
            off = jnp.minimum(off, only.longest[i] * size)
        error += rounding.growth[i] * off
    moved: Any = 0.0
    for roundoff, side in zip(roundoffs, sides, strict=True):
        i = Sides._fields.index(side)
        moved += roundoff * length(root(trace[i]) * root(frobenius[1 - i]))
    # Gradients of separate places are orthogonal; of vectors in pieces the lengths are too large.
    absolute = sum((p.lengths for p in uses[1:]), uses[0].lengths)
    absolute = jnp.minimum(absolute, root(trace[0]) * root(trace[1]))
    return Sums(
        over(sum((p.square for p in uses), across)),
        over(error) * (1 + summed),
        moved * (1 + summed),
        length(absolute) * (1 + summed),
        *(over(t) for t in trace),
    )


def spread(rows: int, entries: int, leaning: float = 0.0) -> float:
    """The Frobenius norm of the Gram matrix of unit rows, which lean to one side or do not."""
    return math.sqrt(rows + rows * rows * (1 / entries + leaning**2))


def values_are_scaled(rows: int, values: int, gradients: int, roundoff: float) -> bool:
    """Whether a coefficient goes to the values or to their gradients, by numbers in a row.

    To the shorter ones. But its rounding may move a sum by as much as the Gram matrix of the others
    is large, so gradients do not take it where values that lean to one side would make that too
    much.
    """
    moved = roundoff * math.sqrt(spread(rows, values, LEANING))
    return values <= gradients or moved > WORST_SLACK


def kernel_chunk() -> int:
    """How many numbers the kernel adds up in a row."""
    return gram_kernel.CHUNK


def kernel_takes(rows: int, multiplier: precision.Multiplier) -> bool:
    """Whether there are rows enough for the kernel, and a device that has it."""
    tf32 = multiplier.mantissa is not None
    fits = gram_kernel.available(multiplier.dtype, multiplier.dtype, tf32=tf32)
    return rows >= KERNEL_ROWS and fits


def inner_products(one: Any, two: Any, name: str) -> jax.Array:
    """(B, separate..., pieces, rows of one..., rows of two...): the Gram matrix of one side."""
    x, y = getattr(one, name), getattr(two, name)
    apart = 1 + one.separate
    if x.unit and y.unit:
        ours, theirs = (
            (x.values, range(apart + one.rows, apart + one.rows + two.rows)),
            (
                y.values,
                range(apart, apart + one.rows),
            ),
        )
        same = jnp.expand_dims(*ours) == jnp.expand_dims(*theirs)
        return jnp.expand_dims(same.astype(one.dtype), apart)
    if x.unit:
        return jnp.expand_dims(_picked(x, y, apart, one.rows, two.rows), apart)
    if y.unit:
        found = _picked(y, x, apart, two.rows, one.rows)
        back = (
            *range(apart),
            *range(apart + two.rows, found.ndim),
            *range(apart, apart + two.rows),
        )
        return jnp.expand_dims(jnp.transpose(found, back), apart)
    a, at = _cut(x.values, apart + one.rows, one.pieces)
    b, _ = _cut(y.values, apart + two.rows, one.pieces)
    shift = two.rows - one.rows
    batch = (*range(apart), at), (*range(apart), at + shift)
    contract = tuple(i for i in range(apart + one.rows, a.ndim) if i != at)
    return jax.lax.dot_general(
        a,
        b,
        ((contract, tuple(i + shift for i in contract)), batch),
        precision=one.multiplier.precision,
        preferred_element_type=one.dtype,
    )


def _picked(unit: Any, other: Any, apart: int, unit_rows: int, other_rows: int) -> jax.Array:
    """Inner products of unit vectors with others: the entries at the places of the ones."""
    lead, rows = other.values.shape[:apart], other.values.shape[apart : apart + other_rows]
    flat = other.values.reshape(*lead, math.prod(rows), -1)
    index = unit.values.reshape(*lead, -1)
    found = jnp.take_along_axis(flat, index[..., None, :], axis=-1, mode="promise_in_bounds")
    found = jnp.swapaxes(found, -1, -2).astype(precision.accumulation_dtype(flat.dtype))
    return found.reshape(*lead, *unit.values.shape[apart:], *rows)


def _cut(x: jax.Array, first: int, pieces: int) -> tuple[jax.Array, int]:
    """`x` with an entry dimension cut as a mesh may have cut it, and where the pieces are."""
    for axis in range(first, x.ndim):
        if pieces > 1 and x.shape[axis] % pieces == 0:
            shape = (*x.shape[:axis], pieces, x.shape[axis] // pieces, *x.shape[axis + 1 :])
            return x.reshape(shape), axis
    return jnp.expand_dims(x, first), first


def diagonal(gram: jax.Array, rows: int) -> jax.Array:
    """(..., rows..., rows...) to (..., rows...)."""
    lead = gram.ndim - 2 * rows
    for row in range(rows):
        gram = jnp.diagonal(gram, axis1=lead, axis2=lead + rows - row)
    return gram


def over_rows(x: jax.Array, rows: int) -> jax.Array:
    """Sums the last `rows` dimensions, the last one first, so that no sum is long."""
    for _ in range(rows):
        x = jnp.sum(x, axis=-1)
    return x


def length(x: jax.Array) -> jax.Array:
    """The length of each x[i], whose squares may be too small for a float."""
    scaled, e = scale_to_one(x.reshape(x.shape[0], -1))
    return scale_back(root(over(scaled * scaled)), e)


def over(x: jax.Array, first: int = 1) -> jax.Array:
    """Sums the dimensions from `first` on."""
    return jnp.sum(x, axis=tuple(range(first, x.ndim)))
