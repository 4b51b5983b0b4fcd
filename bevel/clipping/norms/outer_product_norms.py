"""Three ways to compute the norm of a sum of outer products, derived in `outer_products.py`.

Also forms the sum itself, for gradients that JAX would be slow to form.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.norms import gram
from bevel.clipping.norms.gram import NormSums
from bevel.clipping.norms.materialised import SAFE_SQUARES, in_range, scaled_square, staged_sum
from bevel.clipping.norms.registry import MeasuredNorm, Norm
from bevel.clipping.norms.scaling import SMALLEST_SQUARE, root, scale_back, scale_to_one


def outer_norm(use: Any, scaled: bool) -> MeasuredNorm:
    """The norm of a single outer product: the product of the lengths of two vectors."""
    use = use.operands()
    dtype, lead = use.dtype, 1 + use.separate
    lead_shape = use.right.values.shape[:lead]
    length = upper = jnp.ones(lead_shape, dtype)
    exponent, terms = jnp.zeros(lead_shape, np.int32), 12
    sound = jnp.ones(lead_shape, bool)
    for side in (use.left, use.right):
        if side.one_hot:
            continue
        values = side.values.reshape(math.prod(lead_shape), *side.values.shape[lead:])
        if scaled:
            square, e, roundings = scaled_square(values)
            exponent, largest = exponent + e.reshape(lead_shape), square
        else:
            square, roundings = staged_sum(jnp.square(values.astype(dtype)))
            largest = square + side.size * SMALLEST_SQUARE
            sound &= in_range(square, SAFE_SQUARES).reshape(lead_shape)
        # Multiply roots, because the product of two squares may be out of range.
        length *= root(square).reshape(lead_shape)
        upper *= root(largest).reshape(lead_shape)
        terms += roundings
    slack = precision.rounding_growth(terms, dtype) + use.multiplier.roundoff * (1 + 2.0**-20)
    norm = Norm(scale_back(length, exponent), scale_back(upper, exponent) * (1 + slack))
    for _ in range(use.separate):
        norm = Norm(*(row_norms(x) for x in norm))
    sound = jnp.all(sound, axis=tuple(range(1, lead)))
    return MeasuredNorm(norm, sound & jnp.isfinite(norm.upper))


def row_norms(x: jax.Array) -> jax.Array:
    """Upper bounds on the norms of vectors along the last dimension."""
    scaled, e = scale_to_one(x, (x.ndim - 1,))
    slack = precision.rounding_growth(x.shape[-1] + 8, x.dtype)
    return scale_back(root(jnp.sum(scaled * scaled, axis=-1)), e) * (1 + slack)


def gram_sums(uses: Sequence[Any]) -> NormSums:
    """The sums of the Gram form, over pairs of rows of one use and of two."""
    first = uses[0]
    lead = 1 + first.separate
    pair_sums, across = [], jnp.zeros((), first.dtype)
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
            across += 2 * gram.sum_of_products(left, right, lead, one.rows + two.rows)
    rows = sum(use.row_count for use in uses)
    growth = []
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
    return gram.bound(pair_sums, across, rounding, [u.multiplier.roundoff for u in uses], scaled)


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
