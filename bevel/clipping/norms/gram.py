"""The Gram form: the square of a norm from inner products of rows, and what bounds its rounding.

    |sum_t l_t (x) r_t|^2 = sum_{t,s} Gl[t,s] Gr[t,s],    Gl[t,s] = l_t . l_s,  Gr[t,s] = r_t . r_s

A vector that a mesh has cut into pieces has a Gram matrix for each: sums over them cross the mesh as
one number per example, where the matrices themselves would not.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.norms import gram_kernel
from bevel.clipping.norms.scaling import root

# With fewer rows than this the kernel has too little to do.
KERNEL_ROWS = 64


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


class Pairs(NamedTuple):
    """Sums over the pairs of rows of one use, or of two; (B, separate...) and further dimensions."""

    square: jax.Array  # of Gl Gr
    squares: Sides  # of Gl^2 and Gr^2, for each piece
    sizes: Sides | None  # of |Gl| and |Gr|, for each piece
    traces: Sides | None = None  # these three of the pairs of a row with itself
    longest: Sides | None = None
    lengths: Any = None  # sum_t |l_t| |r_t|


def over_matrices(left: jax.Array, right: jax.Array, apart: int, rows: tuple[int, int]) -> Pairs:
    """From Gram matrices (B, separate..., pieces, rows of one..., rows of two...)."""
    both = sum(rows)
    pairs = jnp.expand_dims(left, apart + 1) * jnp.expand_dims(right, apart)
    return Pairs(
        jnp.sum(over_rows(pairs, both), axis=(apart, apart + 1)),
        Sides(*(over_rows(gram * gram, both) for gram in (left, right))),
        Sides(*(over_rows(jnp.abs(gram), both) for gram in (left, right))),
    )


def with_diagonals(pairs: Pairs, diagonals: Sides, apart: int) -> Pairs:
    """With the squares of the lengths of the rows, each (B, separate..., pieces, rows...)."""
    # Of a vector in pieces, the length is at most the sum of theirs.
    lengths = [jnp.sum(root(d), axis=apart) for d in diagonals]
    most = [jnp.max(d, axis=tuple(range(apart + 1, d.ndim))) for d in diagonals]
    return pairs._replace(
        traces=Sides(*(jnp.sum(d, axis=tuple(range(apart, d.ndim))) for d in diagonals)),
        longest=Sides(*(jnp.sum(m, axis=apart) for m in most)),
        lengths=over(lengths[0] * lengths[1], apart),
    )


def by_kernel(left: jax.Array, right: jax.Array, apart: int, tf32: bool) -> Pairs:
    """From vectors (B, separate..., rows, entries), without the matrices."""
    lead = left.shape[:apart]
    h, g = (x.reshape(-1, *x.shape[apart:]) for x in (left, right))
    sums = gram_kernel.gram_sums(h, g, tf32=tf32)
    found = [x.reshape(lead) for x in sums]
    square, left_square, right_square, left_trace, right_trace, lengths = found
    squares = Sides(left_square[..., None], right_square[..., None])
    return Pairs(square, squares, None, Sides(left_trace, right_trace), None, lengths)


class Rounding(NamedTuple):
    """Of Gram matrices: how far each entry may be off, relative to the lengths of its rows."""

    growth: Sides
    summed: float  # of a sum over all pairs
    rows: int


def bound(
    pairs: Sequence[tuple[int, Pairs]], rounding: Rounding, scaled: Sequence[tuple[float, str]]
) -> Sums:
    """What bounds the norm, from pairs of uses that count so often.

    `scaled`: for each use, the roundoff of its operands and the side that takes the coefficient.
    """
    own = [p for _, p in pairs if p.traces is not None]
    apart = own[0].square.ndim
    trace = Sides(*(sum(p.traces[i] for p in own) for i in range(2)))
    summed = rounding.summed

    def total(of: str, side: int) -> Any:
        return sum(times * getattr(p, of)[side] for times, p in pairs)

    sharp = all(p.sizes is not None for _, p in pairs)
    frobenius, by_rows = [], []
    for i in range(2):
        growth = rounding.growth[i]
        size = jnp.sum(root(total("squares", i)), axis=apart)
        frobenius.append(size * (1 + summed) + growth * trace[i])
        if sharp:
            size = jnp.sum(total("sizes", i), axis=apart)
            by_rows.append(size * (1 + summed) + growth * rounding.rows * trace[i])
    error = summed * frobenius[0] * frobenius[1]
    for i in range(2):
        off = trace[i] * frobenius[1 - i]
        if sharp:
            longest = functools.reduce(jnp.maximum, [p.longest[i] for p in own])
            off = jnp.minimum(off, longest * by_rows[1 - i])
        error += rounding.growth[i] * off
    moved: Any = 0.0
    for roundoff, side in scaled:
        i = Sides._fields.index(side)
        moved += roundoff * root(over(trace[i] * frobenius[1 - i]))
    square = sum(times * p.square for times, p in pairs)
    return Sums(
        over(square),
        over(error) * (1 + summed),
        moved * (1 + summed),
        over(sum(p.lengths for p in own)) * (1 + summed),
        *(over(t) for t in trace),
    )


def kernel_chunk() -> int:
    """How many numbers the kernel adds up in a row."""
    return gram_kernel.CHUNK


def kernel_takes(left: Any, right: Any, apart: int, multiplier: precision.Multiplier) -> bool:
    """Whether vectors (B, separate..., rows, entries) can be given to the kernel."""
    tf32 = multiplier.mantissa is not None
    shaped = left.ndim == right.ndim == apart + 2 and left.shape[apart] >= KERNEL_ROWS
    return shaped and gram_kernel.available(multiplier.dtype, multiplier.dtype, tf32=tf32)


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
        return jnp.expand_dims(picked(x, y, apart, one.rows, two.rows), apart)
    if y.unit:
        found = picked(y, x, apart, two.rows, one.rows)
        back = (
            *range(apart),
            *range(apart + two.rows, found.ndim),
            *range(apart, apart + two.rows),
        )
        return jnp.expand_dims(jnp.transpose(found, back), apart)
    a, at = cut(x.values, apart + one.rows, one.pieces)
    b, _ = cut(y.values, apart + two.rows, one.pieces)
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


def picked(unit: Any, other: Any, apart: int, unit_rows: int, other_rows: int) -> jax.Array:
    """Inner products of unit vectors with others: the entries at the places of the ones."""
    lead, rows = other.values.shape[:apart], other.values.shape[apart : apart + other_rows]
    flat = other.values.reshape(*lead, math.prod(rows), -1)
    index = unit.values.reshape(*lead, -1)
    found = jnp.take_along_axis(flat, index[..., None, :], axis=-1, mode="promise_in_bounds")
    found = jnp.swapaxes(found, -1, -2).astype(precision.accumulation_dtype(flat.dtype))
    return found.reshape(*lead, *unit.values.shape[apart:], *rows)


def cut(x: jax.Array, first: int, pieces: int) -> tuple[jax.Array, int]:
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


def over(x: jax.Array, first: int = 1) -> jax.Array:
    """Sums the dimensions from `first` on."""
    return jnp.sum(x, axis=tuple(range(first, x.ndim)))
