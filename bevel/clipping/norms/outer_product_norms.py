"""The three forms of the norm of a sum of outer products: see `outer_products.py` for the derivations.

And the sum itself, formed where JAX would be slow to do it.
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
from bevel.clipping.norms.gram import Sums
from bevel.clipping.norms.materialised import SOUND, in_range, scaled_square, staged_sum
from bevel.clipping.norms.registry import MeasuredNorm, Norm
from bevel.clipping.norms.scaling import SMALLEST_SQUARE, root, scale_back, scale_to_one


def outer_norm(use: Any, scaled: bool) -> MeasuredNorm:
    """One row for each separate place: its norm is the product of the lengths of two vectors."""
    use = use.operands()
    dtype, apart = use.dtype, 1 + use.separate
    lead = use.right.values.shape[:apart]
    length = upper = jnp.ones(lead, dtype)
    exponent, terms = jnp.zeros(lead, np.int32), 12
    sound = jnp.ones(lead, bool)
    for side in (use.left, use.right):
        if side.unit:
            continue
        values = side.values.reshape(math.prod(lead), *side.values.shape[apart:])
        if scaled:
            square, e, more = scaled_square(values)
            exponent, most = exponent + e.reshape(lead), square
        else:
            square, more = staged_sum(jnp.square(values.astype(dtype)))
            most = square + side.size * SMALLEST_SQUARE
            sound &= in_range(square, SOUND).reshape(lead)
        # Of roots, for the product of two squares may be out of range.
        length, upper = (n * root(s).reshape(lead) for n, s in ((length, square), (upper, most)))
        terms += more
    slack = precision.rounding_growth(terms, dtype) + use.multiplier.roundoff * (1 + 2.0**-20)
    norm = Norm(scale_back(length, exponent), scale_back(upper, exponent) * (1 + slack))
    for _ in range(use.separate):
        norm = Norm(*(lengths_of(x) for x in norm))
    sound = jnp.all(sound, axis=tuple(range(1, apart)))
    return MeasuredNorm(norm, sound & jnp.isfinite(norm.upper))


def lengths_of(x: jax.Array) -> jax.Array:
    """The lengths of vectors along the last dimension, none of them too short."""
    scaled, e = scale_to_one(x, (x.ndim - 1,))
    slack = precision.rounding_growth(x.shape[-1] + 8, x.dtype)
    return scale_back(root(jnp.sum(scaled * scaled, axis=-1)), e) * (1 + slack)


def gram_sums(uses: Sequence[Any]) -> Sums:
    """Pairs of rows, of one use or of two."""
    first = uses[0]
    apart = 1 + first.separate
    found, across = [], jnp.zeros((), first.dtype)
    for one, two in itertools.combinations_with_replacement(uses, 2):
        if one is two and one.goes_to_kernel:
            tf32 = one.multiplier.mantissa is not None
            values = one.left.values, one.right.values
            found.append(gram.by_kernel(*values, apart, one.rows, tf32))
            continue
        left, right = (gram.inner_products(one, two, name) for name in gram.Sides._fields)
        if one is two:
            found.append(gram.over_matrices(left, right, apart, one.rows))
        else:
            across += 2 * gram.over_products(left, right, apart, one.rows + two.rows)
    rows = sum(use.row_count for use in uses)
    growth = []
    for name in gram.Sides._fields:
        sides = [getattr(use, name) for use in uses]
        entries = max(side.size for side in sides)
        if _chunked(uses, name):
            entries = gram.kernel_chunk()
        exact = all(side.unit for side in sides)
        growth.append(0.0 if exact else precision.rounding_growth(2 * entries + 16, first.dtype))
    summed = precision.rounding_growth(2 * rows + first.pieces**2 + 32, first.dtype)
    scaled = tuple("left" if use.scales_left("gram") else "right" for use in uses)
    rounding = gram.Rounding(gram.Sides(*growth), summed, float(rows))
    return gram.bound(found, across, rounding, [u.multiplier.roundoff for u in uses], scaled)


def _chunked(uses: Sequence[Any], name: str) -> bool:
    """Whether no inner product of one side is longer than what the kernel adds up in a row."""
    long = [use for use in uses if not getattr(use, name).unit]
    if len(long) != 1 or not long[0].goes_to_kernel:
        return False
    size, other = getattr(long[0], name).size, min(long[0].left.size, long[0].right.size)
    return size > gram.kernel_chunk() and size > other


def product_sums(uses: Sequence[Any]) -> Sums:
    """The gradient itself, formed for each example."""
    first = uses[0]
    dtype, apart = first.dtype, 1 + first.separate
    gradient: Any = 0.0
    absolute: Any = 0.0
    traces: list[Any] = [0.0, 0.0]
    rows = 0
    for use in uses:
        gradient += _product_of(use, use.left.values, use.right.values, dtype)
        squares = [
            jnp.sum(
                jnp.square(side.values.astype(dtype)),
                axis=tuple(range(apart + use.rows, side.values.ndim)),
            )
            for side in (use.left, use.right)
        ]
        absolute += gram.over(root(squares[0]) * root(squares[1]), apart)
        traces = [t + gram.over(s) for t, s in zip(traces, squares, strict=True)]
        rows += use.row_count
    square, terms = staged_sum(jnp.square(gradient))
    growth = precision.rounding_growth(terms + 8, dtype)
    absolute = gram.length(absolute) * (
        1 + precision.rounding_growth(max(first.left.size, first.right.size) + rows + 8, dtype)
    )
    moved = precision.rounding_growth(2 * rows + 2, dtype) * absolute
    for use in uses:
        moved += use.multiplier.roundoff * product_moves(use, traces, absolute)
    return Sums(square, growth * square, moved, absolute, *traces)


def product_moves(use: Any, traces: Sequence[Any], absolute: Any) -> Any:
    """A bound on `|sum_t d_t (x) r_t|` for rows d_t no longer than those of the scaled side.

    In full precision the sum of the lengths will do. Else |r|_2 is bounded by the Gram matrix of
    the entries of r, the shorter side.
    """
    if use.multiplier.roundoff < 1e-6:
        return absolute
    left = use.scales_left("product")
    other = (use.right if left else use.left).values
    apart = 1 + use.separate
    over, batch = tuple(range(apart, apart + use.rows)), tuple(range(apart))
    entries = jax.lax.dot_general(
        other,
        other,
        ((over, over), (batch, batch)),
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
    """The gradients (B, *matrix) of all uses of a matrix, whose places are its dimensions.

    As JAX forms them, in the dtype of the operands, but from sides that may have been padded: then
    the gradients have as many zeros more.
    """
    total: Any = None
    # Products first: rows that were looked up are added in place.
    for use in sorted(uses, key=lambda use: use.left.unit or use.right.unit):
        first, second = _in_order(use)
        if first.unit or second.unit:
            total = jax.vmap(_looked_up_in)(total, first, second)
        else:
            dtype = use.multiplier.dtype
            sides = [side.values.astype(dtype) for side in (first, second)]
            product = _product_of(use, sides[0], sides[1], dtype)
            total = product if total is None else total + product
    return total


def _product_of(use: Any, first: jax.Array, second: jax.Array, dtype: Any) -> jax.Array:
    """(B, separate..., entries of the first..., of the second...): the gradients at one use."""
    apart = 1 + use.separate
    over, batch = tuple(range(apart, apart + use.rows)), tuple(range(apart))
    return jax.lax.dot_general(
        first,
        second,
        ((over, over), (batch, batch)),
        precision=use.multiplier.precision,
        preferred_element_type=dtype,
    )


def _in_order(use: Any) -> tuple[Any, Any]:
    """The sides in the order of the matrix's dimensions."""
    return (use.left, use.right)[:: 1 if use.left_places < use.right_places else -1]


def _looked_up_in(total: jax.Array, first: Any, second: Any) -> jax.Array:
    """`total` and the rows of one example, at the places of their unit vectors."""
    unit, other = (first, second) if first.unit else (second, first)
    index = unit.values.reshape(-1)
    rows = other.values.reshape(index.size, -1).astype(total.dtype)
    # Indices out of range were moved to where the model reads, or their rows to zero.
    if first.unit:
        return total.at[index].add(rows, mode="promise_in_bounds")
    return total.at[:, index].add(rows.T, mode="promise_in_bounds")
