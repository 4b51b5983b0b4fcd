"""The Gram form: squared norms from inner products of rows, and bounds on their rounding.

    |sum_t l_t (x) r_t|^2 = sum_{t,s} Gl[t,s] Gr[t,s],    Gl[t,s] = l_t . l_s,  Gr[t,s] = r_t . r_s

If a mesh splits vectors into pieces, each piece has its own Gram matrix. Only sums over these
matrices cross the mesh, as one number per example, and not the matrices themselves.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms.kernels import gram_kernel
from bevel.clipping.norms.scaling import SMALLEST_SQUARE, root, scale_back, scale_to_one

# With fewer rows than this, the kernel has too little work.
KERNEL_ROWS = 64
# The relative slack that a norm may have. A way with more is used only if there is no other.
WORST_SLACK = 0.05
# The assumed cosine of two rows of activations, as after a ReLU. Rows of gradients are assumed to
# be at random angles.
VALUE_COSINE = 0.2


class NormSums(NamedTuple):
    """The quantities that a norm and its bound are computed from, all (B,)."""

    square: jax.Array  # the squared norm
    error: jax.Array  # bound on the error of the square
    shift: jax.Array  # bound on how far rounding moves the contribution that is summed
    absolute: jax.Array  # A, the sum of the lengths of the terms
    left: jax.Array  # trace of the left Gram matrix
    right: jax.Array  # trace of the right Gram matrix


class Sides(NamedTuple):
    left: Any
    right: Any


class PairSums(NamedTuple):
    """Sums over the pairs of rows of one use, (B, separate...) or (B, separate..., pieces)."""

    square: jax.Array  # of Gl Gr
    squares: Sides  # of Gl^2 and Gr^2, for each piece
    traces: Sides
    lengths: jax.Array  # sum_t |l_t| |r_t|
    sizes: Sides | None = None  # of |Gl| and |Gr|, for each piece
    longest: Sides | None = None  # bounds on |l_t|^2 and |r_t|^2


def sum_of_products(left: jax.Array, right: jax.Array, lead: int, rows: int) -> jax.Array:
    """`sum Gl Gr` from Gram matrices (B, separate..., pieces, rows...) of one use or two.

    `lead` is the number of dimensions (B, separate...).
    """
    pairs = jnp.expand_dims(left, lead + 1) * jnp.expand_dims(right, lead)
    return jnp.sum(sum_last(pairs, rows), axis=(lead, lead + 1))


@functools.partial(jax.jit, static_argnames=("lead", "rows"))  # traced once for many parameters
def pair_sums(left: jax.Array, right: jax.Array, lead: int, rows: int) -> PairSums:
    """From Gram matrices (B, separate..., pieces, rows..., rows...) of one use."""
    diagonals = [diagonal(gram, rows) for gram in (left, right)]
    # The length of a vector in pieces is at most the sum of the pieces' lengths.
    lengths = [jnp.sum(root(d), axis=lead) for d in diagonals]
    largest = [jnp.max(d, axis=tuple(range(lead + 1, d.ndim))) for d in diagonals]
    return PairSums(
        sum_of_products(left, right, lead, 2 * rows),
        Sides(*(sum_last(gram * gram, 2 * rows) for gram in (left, right))),
        Sides(*(sum_from(d, lead) for d in diagonals)),
        sum_from(lengths[0] * lengths[1], lead),
        Sides(*(sum_last(jnp.abs(gram), 2 * rows) for gram in (left, right))),
        Sides(*(jnp.sum(x, axis=lead) for x in largest)),
    )


def pair_sums_by_kernel(
    left: jax.Array, right: jax.Array, lead: int, rows: int, tf32: bool, loops: int = 0
) -> PairSums:
    """From vectors (B, loops..., separate..., rows..., entries...), without the matrices."""
    # A loop stacks its steps in front of the examples. In this order, no value is moved.
    left, right = (jnp.moveaxis(x, 0, loops) for x in (left, right))
    lead_shape = left.shape[:lead]
    count = math.prod(left.shape[lead : lead + rows])
    h, g = (x.reshape(math.prod(lead_shape), count, -1) for x in (left, right))
    found = gram_kernel.gram_sums(h, g, tf32=tf32)
    sums = [jnp.moveaxis(x.reshape(lead_shape), loops, 0) for x in found]
    square, left_square, right_square, left_trace, right_trace, lengths = sums
    squares = Sides(left_square[..., None], right_square[..., None])
    return PairSums(square, squares, Sides(left_trace, right_trace), lengths)


class Rounding(NamedTuple):
    """Relative rounding errors of Gram matrices and of sums over them."""

    growth: Sides  # of an entry, relative to the product of its rows' lengths
    summed: float  # of a sum over all pairs
    rows: float  # the number of rows


@functools.partial(jax.jit, static_argnames="sides")  # traced once for many parameters
def bound(
    uses: Sequence[PairSums],
    across: Sequence[jax.Array],
    rounding: Rounding,
    roundoffs: Sequence[float],
    sides: tuple[str, ...],
) -> NormSums:
    """The `NormSums` of a parameter, from the pairs of rows within each use and across uses.

    With U and V the rows of two uses, |U V^T|^2 <= |U U^T| |V V^T|. So the Frobenius norm of the
    Gram matrix of all rows is at most the sum of those of the uses.

    `roundoffs` are those of each use's operands, and `sides` the side that the coefficient scales.
    """
    lead = uses[0].square.ndim
    trace = Sides(*(sum(p.traces[i] for p in uses) for i in range(2)))
    summed = rounding.summed
    lost = rounding.rows**2 * SMALLEST_SQUARE  # what the squares may have lost to underflow
    frobenius = [
        sum(jnp.sum(root(p.squares[i] + lost), axis=lead) for p in uses) * (1 + summed)
        + rounding.growth[i] * trace[i]
        for i in range(2)
    ]
    error = summed * frobenius[0] * frobenius[1]
    for i in range(2):
        off = trace[i] * frobenius[1 - i]
        (only, *more) = uses
        if not more and only.sizes is not None and only.longest is not None:
            size = jnp.sum(only.sizes[1 - i], axis=lead) * (1 + summed)
            size += rounding.growth[1 - i] * rounding.rows * trace[1 - i]
            off = jnp.minimum(off, only.longest[i] * size)
        error += rounding.growth[i] * off
    shift: Any = 0.0
    for roundoff, side in zip(roundoffs, sides, strict=True):
        i = Sides._fields.index(side)
        shift += roundoff * length(root(trace[i]) * root(frobenius[1 - i]))
    # Gradients of separate slices are orthogonal. Lengths of vectors in pieces are upper bounds.
    absolute = sum((p.lengths for p in uses[1:]), uses[0].lengths)
    absolute = jnp.minimum(absolute, root(trace[0]) * root(trace[1]))
    return NormSums(
        sum_from(sum([*(p.square for p in uses[1:]), *across], uses[0].square)),
        sum_from(error) * (1 + summed),
        shift * (1 + summed),
        length(absolute) * (1 + summed),
        *(sum_from(t) for t in trace),
    )


def spread(rows: int, entries: int, cosine: float = 0.0) -> float:
    """The expected Frobenius norm of the Gram matrix of unit rows with this mean cosine."""
    return math.sqrt(rows + rows * rows * (1 / entries + cosine**2))


def values_are_scaled(rows: int, values: int, gradients: int, roundoff: float) -> bool:
    """Whether the coefficient multiplies the values and not their gradients.

    It multiplies whichever has fewer entries per row. But rounding the scaled side moves the sum in
    proportion to the Gram matrix of the other side. The values are scaled, even if they are longer,
    where their Gram matrix would make that shift too large.
    """
    shift = roundoff * math.sqrt(spread(rows, values, VALUE_COSINE))
    return values <= gradients or shift > WORST_SLACK


def kernel_chunk() -> int:
    """How many numbers the kernel adds in a row."""
    return gram_kernel.CHUNK


def kernel_takes(rows: int, multiplier: precision.MatmulPrecision) -> bool:
    """Whether there are enough rows for the kernel, and the device supports it."""
    tf32 = multiplier.mantissa is not None
    fits = gram_kernel.available(multiplier.dtype, multiplier.dtype, tf32=tf32)
    return rows >= KERNEL_ROWS and fits


def inner_products(one: Any, two: Any, name: str) -> jax.Array:
    """The Gram matrix of one side: (B, separate..., pieces, rows of one..., rows of two...)."""
    x, y = getattr(one, name), getattr(two, name)
    lead = 1 + one.separate
    if x.one_hot and y.one_hot:
        ours = jnp.expand_dims(x.values, range(lead + one.rows, lead + one.rows + two.rows))
        theirs = jnp.expand_dims(y.values, range(lead, lead + one.rows))
        return jnp.expand_dims((ours == theirs).astype(one.dtype), lead)
    if x.one_hot:
        return jnp.expand_dims(_entries_at(x, y, lead, two.rows), lead)
    if y.one_hot:
        entries = _entries_at(y, x, lead, one.rows)
        order = (
            *range(lead),
            *range(lead + two.rows, entries.ndim),
            *range(lead, lead + two.rows),
        )
        return jnp.expand_dims(jnp.transpose(entries, order), lead)
    a, at = _split_entries(x.values, lead + one.rows, one.pieces)
    b, _ = _split_entries(y.values, lead + two.rows, one.pieces)
    shift = two.rows - one.rows
    batch = (*range(lead), at), (*range(lead), at + shift)
    contract = tuple(i for i in range(lead + one.rows, a.ndim) if i != at)
    return jax.lax.dot_general(
        a,
        b,
        ((contract, tuple(i + shift for i in contract)), batch),
        precision=one.multiplier.precision,
        preferred_element_type=one.dtype,
    )


def _entries_at(one_hot: Any, other: Any, lead: int, other_rows: int) -> jax.Array:
    """Inner products of one-hot vectors with others: the entries at their indices."""
    lead_shape, row_shape = other.values.shape[:lead], other.values.shape[lead : lead + other_rows]
    flat = other.values.reshape(*lead_shape, math.prod(row_shape), -1)
    index = one_hot.values.reshape(*lead_shape, -1)
    entries = jnp.take_along_axis(flat, index[..., None, :], axis=-1, mode="promise_in_bounds")
    entries = jnp.swapaxes(entries, -1, -2).astype(precision.accumulation_dtype(flat.dtype))
    return entries.reshape(*lead_shape, *one_hot.values.shape[lead:], *row_shape)


def _split_entries(x: jax.Array, first: int, pieces: int) -> tuple[jax.Array, int]:
    """`x` with an entry dimension split as a mesh may have split it, and the axis of the pieces."""
    for axis in range(first, x.ndim):
        if pieces > 1 and x.shape[axis] % pieces == 0:
            shape = (*x.shape[:axis], pieces, x.shape[axis] // pieces, *x.shape[axis + 1 :])
            return x.reshape(shape), axis
    return jnp.expand_dims(x, first), first


def diagonal(gram: jax.Array, rows: int) -> jax.Array:
    """(..., rows..., rows...) to (..., rows...)."""
    lead = gram.ndim - 2 * rows
    # Selected and summed: a gather takes a CPU's compiler several operations and a copy.
    for row in range(rows):
        one, two = (
            jax.lax.broadcasted_iota(np.int32, gram.shape, lead + i * rows + row) for i in range(2)
        )
        gram = jnp.where(one == two, gram, jnp.zeros_like(gram))
    return sum_last(gram, rows)


def sum_last(x: jax.Array, count: int) -> jax.Array:
    """Sums the last `count` dimensions one after the other, so that no sum is long."""
    for _ in range(count):
        x = jnp.sum(x, axis=-1)
    return x


def length(x: jax.Array) -> jax.Array:
    """The L2 norm of each x[i], whose squares may underflow."""
    scaled, e = scale_to_one(x.reshape(x.shape[0], -1))
    return scale_back(root(sum_from(scaled * scaled)), e)


def sum_from(x: jax.Array, first: int = 1) -> jax.Array:
    """Sums the dimensions from `first` on."""
    return jnp.sum(x, axis=tuple(range(first, x.ndim)))
