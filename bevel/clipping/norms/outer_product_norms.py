"""Three ways to compute the norm of a sum of outer products, derived in `outer_products.py`.

Also forms the sum itself, for gradients that JAX would be slow to form.
"""

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms import gram
from bevel.clipping.norms.gram import NormSums
from bevel.clipping.norms.materialised import (
    SAFE_SQUARES,
    in_range,
    roundings,
    scaled_square,
    staged_sum,
)
from bevel.clipping.norms.registry import MeasuredNorm, Norm
from bevel.clipping.norms.scaling import SMALLEST_SQUARE, root, scale_back, scale_to_one
from bevel.clipping.norms.unfinished import UnfinishedNorm


def unfinished_outer_norm(use: Any) -> UnfinishedNorm:
    """As `outer_norm` without scaling, up to the sums of squares of the two vectors."""
    squares, lead = _squares_of_sides(use), 1 + use.separate
    sizes = [float(side.size) for side in (use.left, use.right) if not side.one_hot]
    shapes = [side.values.shape[lead:] for side in (use.left, use.right) if not side.one_hot]
    dtype = squares[0].dtype
    slack = precision.rounding_growth(12 + sum(map(roundings, shapes)), dtype)
    slack += use.multiplier.roundoff * (1 + 2.0**-20)
    return UnfinishedNorm(_norm_of_lengths, (squares, sizes, slack))


@jax.jit  # traced once for all uses of one shape
def _squares_of_sides(use: Any) -> list[jax.Array]:
    """The sums of squares (B, separate...) of the sides that are not one-hot."""
    use, lead = use.operands(), 1 + use.separate
    squares = []
    for side in (use.left, use.right):
        if not side.one_hot:
            lead_shape = side.values.shape[:lead]
            values = side.values.reshape(math.prod(lead_shape), *side.values.shape[lead:])
            square, _ = staged_sum(jnp.square(values.astype(use.dtype)))
            squares.append(square.reshape(lead_shape))
    return squares


def _norm_of_lengths(
    squares: Sequence[jax.Array], sizes: Sequence[Any], slack: Any
) -> MeasuredNorm:
    length, upper = (
        # Multiply roots, because the product of two squares may be out of range.
        math.prod(root(square + size * lost) for square, size in zip(squares, sizes, strict=True))
        for lost in (0, SMALLEST_SQUARE)
    )
    sound = [in_range(square, SAFE_SQUARES) for square in squares]
    norm = Norm(length, upper * (1 + slack))
    for _ in range(squares[0].ndim - 1):
        norm = Norm(*(row_norms(x) for x in norm))
    fits = functools.reduce(operator.and_, sound)
    fits = jnp.all(fits, axis=tuple(range(1, fits.ndim)))
    return MeasuredNorm(norm, fits & jnp.isfinite(norm.upper))


def outer_norm(use: Any, scaled: bool) -> MeasuredNorm:
    """The norm of a single outer product: the product of the lengths of two vectors."""
    if not scaled:
        return unfinished_outer_norm(use).finished()
    use = use.operands()
    dtype, lead = use.dtype, 1 + use.separate
    lead_shape = use.right.values.shape[:lead]
    length = jnp.ones(lead_shape, dtype)
    exponent, terms = jnp.zeros(lead_shape, np.int32), 12
    for side in (use.left, use.right):
        if side.one_hot:
            continue
        values = side.values.reshape(math.prod(lead_shape), *side.values.shape[lead:])
        square, e, added = scaled_square(values)
        exponent += e.reshape(lead_shape)
        # Multiply roots, because the product of two squares may be out of range.
        length *= root(square).reshape(lead_shape)
        terms += added
    slack = precision.rounding_growth(terms, dtype) + use.multiplier.roundoff * (1 + 2.0**-20)
    length = scale_back(length, exponent)
    norm = Norm(length, length * (1 + slack))
    for _ in range(use.separate):
        norm = Norm(*(row_norms(x) for x in norm))
    return MeasuredNorm(norm, jnp.isfinite(norm.upper))


def row_norms(x: jax.Array) -> jax.Array:
    """Upper bounds on the norms of vectors along the last dimension."""
    scaled, e = scale_to_one(x, (x.ndim - 1,))
    slack = precision.rounding_growth(x.shape[-1] + 8, x.dtype)
    return scale_back(root(jnp.sum(scaled * scaled, axis=-1)), e) * (1 + slack)


def gram_sums(uses: Sequence[Any]) -> tuple[list[gram.PairSums], list[jax.Array]]:
    """The sums of the Gram form, over pairs of rows of each use, and over those of two uses."""
    lead = 1 + uses[0].separate
    pair_sums: list[gram.PairSums] = []
    across: list[jax.Array] = []
    for one, two in itertools.combinations_with_replacement(uses, 2):
        if one is two and one.goes_to_kernel:
            tf32 = one.multiplier.mantissa is not None
            values = one.left.values, one.right.values
            loops = one.dims[: one.separate].count(None)
            pair_sums.append(gram.pair_sums_by_kernel(*values, lead, one.rows, tf32, loops))
            continue
        left, right = (gram.inner_products(one, two, name) for name in gram.Sides._fields)
        if one is two:
            pair_sums.append(gram.pair_sums(left, right, lead, one.rows))
        else:
            across.append(2 * gram.sum_of_products(left, right, lead, one.rows + two.rows))
    return pair_sums, across


def gram_rounding(uses: Sequence[Any]) -> tuple[gram.Rounding, list[float], tuple[str, ...]]:
    """The last arguments of `gram.bound`."""
    first, rows, growth = uses[0], sum(use.row_count for use in uses), []
    for name in gram.Sides._fields:
        sides = [getattr(use, name) for use in uses]
        entries = max(side.size for side in sides)
        if _chunked(uses, name):
            entries = gram.kernel_chunk()
        exact = all(side.one_hot for side in sides)
        growth.append(0.0 if exact else precision.rounding_growth(2 * entries + 16, first.dtype))
    summed = precision.rounding_growth(2 * rows + first.pieces**2 + 32, first.dtype)
    scaled = tuple("left" if use.scales_left("gram") else "right" for use in uses)
    rounding = gram.Rounding(gram.Sides(*growth), summed, float(rows))
    return rounding, [use.multiplier.roundoff for use in uses], scaled


def _chunked(uses: Sequence[Any], name: str) -> bool:
    """Whether the kernel splits the inner products of one side into chunks."""
    long = [use for use in uses if not getattr(use, name).one_hot]
    if len(long) != 1 or not long[0].goes_to_kernel:
        return False
    size, other = getattr(long[0], name).size, min(long[0].left.size, long[0].right.size)
    return size > gram.kernel_chunk() and size > other


def product_sums(uses: Sequence[Any]) -> NormSums:
    """The sums of the product form, which forms the gradient of each example."""
    first = uses[0]
    dtype, lead = first.dtype, 1 + first.separate
    gradient: Any = 0.0
    absolute: Any = 0.0
    traces: list[Any] = [0.0, 0.0]
    rows = 0
    for use in uses:
        gradient += _product_of(use, use.left.values, use.right.values, dtype)
        squares = [
            jnp.sum(
                jnp.square(side.values.astype(dtype)),
                axis=tuple(range(lead + use.rows, side.values.ndim)),
            )
            for side in (use.left, use.right)
        ]
        absolute += gram.sum_from(root(squares[0]) * root(squares[1]), lead)
        traces = [t + gram.sum_from(s) for t, s in zip(traces, squares, strict=True)]
        rows += use.row_count
    square, terms = staged_sum(jnp.square(gradient))
    growth = precision.rounding_growth(terms + 8, dtype)
    absolute = gram.length(absolute) * (
        1 + precision.rounding_growth(max(first.left.size, first.right.size) + rows + 8, dtype)
    )
    shift = precision.rounding_growth(2 * rows + 2, dtype) * absolute
    for use in uses:
        shift += use.multiplier.roundoff * product_shift(use, traces, absolute)
    return NormSums(square, growth * square, shift, absolute, *traces)


def product_shift(use: Any, traces: Sequence[Any], absolute: Any) -> Any:
    """A bound on `|sum_t d_t (x) r_t|` for rows d_t no longer than those of the scaled side.

    In full precision the sum of the lengths is sharp enough. Otherwise |r|_2 is bounded by the Gram
    matrix of the entries of r, the shorter side.
    """
    if use.multiplier.roundoff < 1e-6:
        return absolute
    left = use.scales_left("product")
    other = (use.right if left else use.left).values
    lead = 1 + use.separate
    rows, batch = tuple(range(lead, lead + use.rows)), tuple(range(lead))
    entries = jax.lax.dot_general(
        other,
        other,
        ((rows, rows), (batch, batch)),
        precision=use.multiplier.precision,
        preferred_element_type=use.dtype,
    )
    size, terms = staged_sum(jnp.square(entries))
    size = root(size + math.prod(entries.shape[1:]) * SMALLEST_SQUARE)
    size = size * (1 + precision.rounding_growth(terms + 8, use.dtype))
    size += precision.rounding_growth(2 * use.row_count + 8, use.dtype) * traces[1 if left else 0]
    bound = root(traces[0 if left else 1]) * root(size)
    return jnp.minimum(bound, absolute)


def formed(uses: Sequence[Any]) -> jax.Array:
    """The gradients (B, *matrix) of all uses of a matrix, whose `dims` are those of the matrix.

    Like JAX, this uses the dtype of the operands. Where sides were padded, the gradients have
    trailing zeros.
    """
    total: Any = None
    # Products first, because the rows of lookups are added in place.
    for use in sorted(uses, key=lambda use: use.left.one_hot or use.right.one_hot):
        first, second = _in_order(use)
        if first.one_hot or second.one_hot:
            total = jax.vmap(_add_rows)(total, first, second)
        else:
            dtype = use.multiplier.dtype
            sides = [side.values.astype(dtype) for side in (first, second)]
            product = _product_of(use, sides[0], sides[1], dtype)
            total = product if total is None else total + product
    return total


def _product_of(use: Any, first: jax.Array, second: jax.Array, dtype: Any) -> jax.Array:
    """The gradients at one use: (B, separate..., entries of the first..., of the second...)."""
    lead = 1 + use.separate
    rows, batch = tuple(range(lead, lead + use.rows)), tuple(range(lead))
    return jax.lax.dot_general(
        first,
        second,
        ((rows, rows), (batch, batch)),
        precision=use.multiplier.precision,
        preferred_element_type=dtype,
    )


def _in_order(use: Any) -> tuple[Any, Any]:
    """The sides in the order of the matrix's dimensions."""
    return (use.left, use.right)[:: 1 if use.left_dims < use.right_dims else -1]


def _add_rows(total: jax.Array, first: Any, second: Any) -> jax.Array:
    """Adds the rows of one example to `total`, at the indices of their one-hot vectors."""
    one_hot, other = (first, second) if first.one_hot else (second, first)
    index = one_hot.values.reshape(-1)
    rows = other.values.reshape(index.size, -1).astype(total.dtype)
    # Indices are in range: the lookup rule clipped them.
    if first.one_hot:
        return total.at[index].add(rows, mode="promise_in_bounds")
    return total.at[:, index].add(rows.T, mode="promise_in_bounds")
