"""Gradients that are sums of outer products, G = sum_t l_t (x) r_t. Only l and r are stored.

    one row:  |l (x) r|              = |l| |r|
    Gram:     |sum_t l_t (x) r_t|^2  = sum_{t,s} (l_t . l_s) (r_t . r_s)
    product:  G itself is formed, squared and dropped

For T rows with D and K entries, the Gram form needs T^2 (D + K) multiplications and T^2 numbers,
and the product form T D K and D K. `choose.py` picks the cheaper one. A parameter with several uses
has the rows of all of them, so its cross terms are pairs of rows like any others. The left rows of
a lookup are unit vectors: their inner products compare indices, and no row is as long as the table.

Rounding. Products of operands are exact in float32, and a sum of n of them has an error of at most
gamma_n times the sum of their absolute values. Let Gl and Gr be the Gram matrices, |.| the
Frobenius norm and tr the trace.

    error of Gl[t,s]           <= gamma_D |l_t| |l_s|
    error of sum Gl Gr         <= gamma_D min(tr Gl |Gr|, max_t |l_t|^2 sum |Gr|)
                                  + the same with l and r exchanged
    |sum_t d_t (x) r_t|        <= sqrt(sum |d_t|^2) |r|_2 <= u sqrt(tr Gl |Gr|), |d_t| <= u |l_t|

The last line bounds how far rounding `coefficient * l` to the operands' dtype moves a contribution.
With A = sum_t |l_t| |r_t|, the bound on the norm is never below A / MAX_CANCELLATION. This limits
how much larger the terms of one contribution can be than their sum.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.bounded import MAX_CANCELLATION
from bevel.clipping.norms import gram, outer_product_norms
from bevel.clipping.norms.gram import NormSums
from bevel.clipping.norms.materialised import in_range
from bevel.clipping.norms.registry import MeasuredNorm, Norm
from bevel.clipping.norms.scaling import (
    SMALLEST_SQUARE,
    power_of_two,
    root,
    scale_back,
    top_exponent,
)
from bevel.clipping.norms.unfinished import UnfinishedNorm
from bevel.clipping.norms.weighting import weighted

# If both traces are within these bounds, entries up to fourth powers are in the range of float32.
SAFE_TRACES = (2.0**-50, 2.0**60)
# What underflow may have removed from a squared norm, relative to the product of the traces.
LOST = 2.0**-80
# Vectors of at least SHORTEST_PADDED entries are padded to a multiple of PADDED_MULTIPLE, as matrix
# units need.
PADDED_MULTIPLE, SHORTEST_PADDED = 8, 1024


def is_padded(size: int) -> bool:
    """Whether vectors of this length are padded."""
    return size >= SHORTEST_PADDED and size % PADDED_MULTIPLE != 0


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["entries", "one_hot"]
)
@dataclasses.dataclass(frozen=True)
class Side:
    """Vectors (B, separate..., rows..., entries...), or the indices of one-hot vectors."""

    values: jax.Array
    entries: tuple[int, ...]
    one_hot: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.entries)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["left", "right"],
    meta_fields=["separate", "rows", "dims", "multiplier", "pieces", "swapped"],
)
@dataclasses.dataclass(frozen=True)
class OuterProducts:
    """The gradients of B examples, each a stack of sums of outer products.

    `dims` gives the operand's dimension for each separate dimension, each entry dimension of the
    left side and each of the right side. A loop around the equation has None.
    """

    left: Side
    right: Side
    separate: int  # number of dimensions
    rows: int  # number of dimensions
    dims: tuple[int | None, ...]
    multiplier: precision.MatmulPrecision
    pieces: int = 1  # how many pieces a mesh may have split vectors into
    swapped: bool = False  # the cotangent is the left side

    def norm(self, way: str, scaled: bool = True) -> MeasuredNorm:
        return norm_of([self], way, scaled)

    def unfinished_norm(self, way: str) -> UnfinishedNorm:
        return unfinished_norm_of([self], way)

    # With `jit`, this is traced once for all uses of one shape, like `norm_of`.
    @functools.partial(jax.jit, static_argnames="way")
    def weighted_sum(self, factor: jax.Array, keep: Any = None, way: str = "gram") -> jax.Array:
        """`sum_b factor[b] * G_b` in the operand's layout, with loop dimensions in front."""
        left, right = self.left.values, self.right.values
        if self.scales_left(way):
            left, right = weighted(self.multiplier, left, right, factor, keep)
        else:
            right, left = weighted(self.multiplier, right, left, factor, keep)
        batch = tuple(range(1, 1 + self.separate))
        rows = (0, *range(1 + self.separate, 1 + self.separate + self.rows))
        dims, entries = self.dims, (*self.left.entries, *self.right.entries)
        if self.left.one_hot:
            total = self.scattered(left, right)
        else:
            if self.right_dims[:1] < self.left_dims[:1]:  # in the operand's order
                left, right = right, left
                dims = self.with_sides_swapped().dims
                entries = (*self.right.entries, *self.left.entries)
            if jax.default_backend() == "cpu":
                # On a CPU, XLA lacks bfloat16 products with a transposed result, as for `w.T`.
                left, right = left.astype(self.dtype), right.astype(self.dtype)
            total = jax.lax.dot_general(
                left,
                right,
                ((rows, rows), (batch, batch)),
                precision=self.multiplier.precision,
                preferred_element_type=self.dtype,
            )
        # Remove the padding for matrix units.
        total = total[(..., *(slice(size) for size in entries))]
        loops = sum(dim is None for dim in dims)
        target = [i if dim is None else loops + dim for i, dim in enumerate(dims)]
        return jnp.transpose(total, tuple(np.argsort(target)))

    def scattered(self, index: jax.Array, values: jax.Array) -> jax.Array:
        """Rows summed by index: (separate..., left..., right...)."""
        wide = values.astype(precision.accumulation_dtype(values.dtype))
        separate = wide.shape[1 : 1 + self.separate]
        index = jnp.moveaxis(index, 0, self.separate).reshape(*separate, -1)
        entries = wide.shape[1 + self.separate + self.rows :]
        wide = jnp.moveaxis(wide, 0, self.separate).reshape(*separate, -1, *entries)

        def add(index: jax.Array, wide: jax.Array) -> jax.Array:
            table = jnp.zeros((self.left.size, *wide.shape[1:]), wide.dtype)
            # Indices are in range: the lookup rule clipped them.
            return table.at[index].add(wide, mode="promise_in_bounds")

        for _ in range(self.separate):
            add = jax.vmap(add)
        return add(index, wide).reshape(*separate, *self.left.entries, *entries)

    def scales_left(self, way: str) -> bool:
        """Whether the coefficient multiplies the left side.

        See `gram.values_are_scaled` and `outer_product_norms.product_shift`.
        """
        if self.left.one_hot or self.right.one_hot:
            return self.right.one_hot
        values, gradients = (self.right, self.left) if self.swapped else (self.left, self.right)
        if way == "product":
            shorter = values.size <= gradients.size
            return (shorter == (self.multiplier.roundoff < 1e-6)) != self.swapped
        sizes = self.row_count, values.size, gradients.size
        return gram.values_are_scaled(*sizes, self.multiplier.roundoff) != self.swapped

    @property
    def row_count(self) -> int:
        return math.prod(self.right.values.shape[1 + self.separate :][: self.rows])

    @property
    def dtype(self) -> np.dtype:
        return precision.accumulation_dtype(self.multiplier.dtype)

    def padded(self) -> "OuterProducts":
        """With zeros after vectors whose length would leave matrix units idle."""

        def pad(side: Side) -> Side:
            if side.one_hot or len(side.entries) != 1 or not is_padded(side.size):
                return side
            padding = [(0, 0, 0)] * (side.values.ndim - 1) + [(0, -side.size % PADDED_MULTIPLE, 0)]
            values = jax.lax.pad(side.values, jnp.zeros((), side.values.dtype), padding)
            return dataclasses.replace(side, values=values)

        return dataclasses.replace(self, left=pad(self.left), right=pad(self.right))

    def operands(self) -> "OuterProducts":
        """The same gradients with both sides rounded to operands."""
        left, right = (
            s if s.one_hot else dataclasses.replace(s, values=self.multiplier.operand(s.values))
            for s in (self.left, self.right)
        )
        return dataclasses.replace(self, left=left, right=right)

    @property
    def left_dims(self) -> tuple[int | None, ...]:
        """The dimensions of the operand that the left vectors run over."""
        return self.dims[self.separate : self.separate + len(self.left.entries)]

    @property
    def right_dims(self) -> tuple[int | None, ...]:
        return self.dims[self.separate + len(self.left.entries) :]

    def with_dims(self, new_dims: Sequence[int | None]) -> "OuterProducts":
        """Renumbers the operand's dimensions, and sorts each side's entries by the new numbers."""

        def renumbered(dims: Sequence[int | None]) -> list[int]:
            new = [None if dim is None else new_dims[dim] for dim in dims]
            return [-1 if dim is None else dim for dim in new]

        first = 1 + self.separate + self.rows
        sides, dims = [], renumbered(self.dims[: self.separate])
        for side, old in ((self.left, self.left_dims), (self.right, self.right_dims)):
            new = renumbered(old)
            order = np.argsort(new, kind="stable")
            values = side.values
            if not side.one_hot:
                values = jnp.transpose(values, (*range(first), *(first + i for i in order)))
            elif list(order) != list(range(len(order))):
                raise ValueError("the indices of a lookup must stay in the order of the table")
            sides.append(Side(values, tuple(side.entries[i] for i in order), side.one_hot))
            dims += [new[i] for i in order]
        return dataclasses.replace(self, left=sides[0], right=sides[1], dims=tuple(dims))

    @property
    def goes_to_kernel(self) -> bool:
        """Whether a kernel sums the pairs of rows, which it does on one device or one shard."""
        if self.left.one_hot or self.right.one_hot or self.pieces != 1:
            return False
        return gram.kernel_takes(self.row_count, self.multiplier)

    def with_sides_swapped(self) -> "OuterProducts":
        dims = (*self.dims[: self.separate], *self.right_dims, *self.left_dims)
        return dataclasses.replace(
            self, left=self.right, right=self.left, dims=dims, swapped=not self.swapped
        )


def norm_of(uses: Sequence[OuterProducts], way: str, scaled: bool = True) -> MeasuredNorm:
    """Norms of `sum_u G_u` for the uses of one parameter, whose sides have the same entries.

    With `scaled`, the sides are scaled by powers of two, so that nothing overflows or underflows.
    Otherwise `sound` in the result says for which examples that could not happen.
    """
    if way == "outer":
        (use,) = uses
        return outer_norm(use, scaled)
    return norm_with_scaling(uses, scaled, lambda uses: unfinished_norm_of(uses, way).finished())


outer_norm = functools.partial(jax.jit, static_argnames="scaled")(outer_product_norms.outer_norm)


def unfinished_norm_of(uses: Sequence[OuterProducts], way: str) -> UnfinishedNorm:
    """As `norm_of` without scaling, up to sums over all values."""
    if way == "outer":
        (use,) = uses
        return outer_product_norms.unfinished_outer_norm(use)
    counts = entry_counts(uses)
    if way == "gram":
        *rounding, sides = outer_product_norms.gram_rounding(uses)
        return UnfinishedNorm(_norm_from_pairs, (*_gram_sums(uses), *rounding, *counts), sides)
    return UnfinishedNorm(norm_from_sums, (_product_sums(uses), *counts))


@jax.jit
def _gram_sums(uses: Sequence[OuterProducts]) -> tuple[list[gram.PairSums], list[jax.Array]]:
    return outer_product_norms.gram_sums([use.operands() for use in uses])


@jax.jit
def _product_sums(uses: Sequence[OuterProducts]) -> NormSums:
    return outer_product_norms.product_sums([use.operands() for use in uses])


def _norm_from_pairs(
    pairs: list[gram.PairSums],
    across: list[jax.Array],
    rounding: gram.Rounding,
    roundoffs: Sequence[Any],
    left_count: Any,
    right_count: Any,
    sides: tuple[str, ...],
) -> MeasuredNorm:
    sums = gram.bound(pairs, across, rounding, roundoffs, sides)
    return norm_from_sums(sums, left_count, right_count)


def norm_with_scaling(
    uses: Sequence[OuterProducts],
    scaled: bool,
    measure: Callable[[Sequence[OuterProducts]], MeasuredNorm],
) -> MeasuredNorm:
    """Norms by `measure`, with the sides scaled first if `scaled`."""
    if not scaled:
        return measure(uses)
    uses, exponent = _scale(uses)
    (estimate, upper), sound = measure(uses)
    return MeasuredNorm(Norm(scale_back(estimate, exponent), scale_back(upper, exponent)), sound)


@jax.jit
def norm_from_sums(sums: NormSums, left_count: float, right_count: float) -> MeasuredNorm:
    """Norms and bounds from sums over `left_count` and `right_count` entries on the two sides."""
    # Every entry may have lost a square of up to SMALLEST_SQUARE to underflow.
    left = sums.left + left_count * SMALLEST_SQUARE
    right = sums.right + right_count * SMALLEST_SQUARE
    square = jnp.maximum(sums.square, 0)
    lost = sums.right * left_count + sums.left * right_count + left_count * right_count
    lost = lost * SMALLEST_SQUARE
    upper = root(square + sums.error + lost + LOST * left * right) + sums.shift
    upper = jnp.maximum(upper, sums.absolute / MAX_CANCELLATION)
    vanished = (sums.left == 0) | (sums.right == 0)
    upper = jnp.where(vanished, jnp.maximum(upper, root(left) * root(right)), upper)
    upper = upper * (1 + 32 * precision.unit_roundoff(upper.dtype))
    fits = in_range(sums.left, SAFE_TRACES) & in_range(sums.right, SAFE_TRACES)
    return MeasuredNorm(Norm(root(square), upper), fits & jnp.isfinite(upper))


def entry_counts(uses: Sequence[OuterProducts]) -> tuple[float, float]:
    """How many entries one example has on the left and on the right side."""
    left, right = (
        float(sum(math.prod(side.values.shape[1:]) for side in sides))
        for sides in zip(*((u.left, u.right) for u in uses), strict=True)
    )
    return left, right


@jax.jit
def _scale(uses: Sequence[OuterProducts]) -> tuple[list[OuterProducts], jax.Array]:
    """Scales the sides so that their largest entries are at most near 1.

    Returns them with the exponents (B,) that undo the scaling.
    """
    uses = [use.operands() for use in uses]

    def top(side: Side) -> jax.Array:
        if side.one_hot:
            return jnp.zeros(side.values.shape[:1], np.int32)
        return top_exponent(side.values)

    def scale(side: Side, exponent: jax.Array, shift: jax.Array) -> Side:
        if side.one_hot:
            return side
        wide = side.values.astype(precision.accumulation_dtype(side.values.dtype))
        shape = (-1, *(1,) * (wide.ndim - 1))
        for e in (-exponent, shift):
            wide = wide * power_of_two(e, wide.dtype).reshape(shape)
        return dataclasses.replace(side, values=wide.astype(side.values.dtype))

    tops = [(top(use.left), top(use.right)) for use in uses]
    largest = functools.reduce(jnp.maximum, [a + b for a, b in tops])
    result = []
    for use, (left, right) in zip(uses, tops, strict=True):
        least = jnp.finfo(use.dtype).minexp
        shift = jnp.maximum(left + right - largest, least)
        none = jnp.zeros_like(shift)
        shifts = (none, shift) if use.left.one_hot else (shift, none)
        sides = scale(use.left, left, shifts[0]), scale(use.right, right, shifts[1])
        result.append(dataclasses.replace(use, left=sides[0], right=sides[1]))
    return result, largest
