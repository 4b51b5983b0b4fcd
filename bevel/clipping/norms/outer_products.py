"""Gradients that are sums of outer products: G = sum_t l_t (x) r_t, of which only l and r are held.

    one row:  |l (x) r|              = |l| |r|
    Gram:     |sum_t l_t (x) r_t|^2  = sum_{t,s} (l_t . l_s) (r_t . r_s)
    product:  G itself, formed, squared and dropped

With T rows of D and K entries the Gram form costs T^2 (D + K) multiplications and T^2 numbers, the
product T D K and D K (`choose.py` takes the cheaper one). A parameter that is used several times
has the rows of all its uses, so cross terms are pairs of rows like others. The rows of a lookup are
unit vectors: their inner products are equalities of indices, and none is as long as the table.

Rounding. Products of operands are exact in float32, and a sum of n of them is off by gamma_n times
the sum of their sizes. Let Gl, Gr be the Gram matrices, |.| the Frobenius norm, tr the trace.

    error of Gl[t,s]           <= gamma_D |l_t| |l_s|
    error of sum Gl Gr         <= gamma_D min(tr Gl |Gr|, max_t |l_t|^2 sum |Gr|) + turned
    |sum_t d_t (x) r_t|        <= sqrt(sum |d_t|^2) |r|_2 <= u sqrt(tr Gl |Gr|), |d_t| <= u |l_t|

The last line bounds what rounding `coefficient * l` to the operands' dtype moves a contribution by.
With A = sum_t |l_t| |r_t|, the bound is never below A / MAX_CANCELLATION, which caps how much
larger than their sum the terms of one contribution are.
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
from bevel.clipping.norms.gram import Sums
from bevel.clipping.norms.materialised import in_range
from bevel.clipping.norms.registry import MeasuredNorm, Norm
from bevel.clipping.norms.scaling import (
    SMALLEST_SQUARE,
    power_of_two,
    root,
    scale_back,
    top_exponent,
)
from bevel.clipping.norms.weighting import weighted

# Traces within these bounds have entries, fourth powers included, that float32 holds.
SOUND = (2.0**-50, 2.0**60)
# Squares below this are lost, relative to 1 or to the smallest number.
LOST = 2.0**-80


# Matrix units take vectors whose length is a multiple of this; shorter ones than LONG are let be.
UNIT, LONG = 8, 1024


def is_odd(size: int) -> bool:
    """Whether vectors of this length are padded."""
    return size >= LONG and size % UNIT != 0


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["entries", "unit"]
)
@dataclasses.dataclass(frozen=True)
class Side:
    """Vectors (B, separate..., rows..., entries...); of unit vectors the places of the ones."""

    values: jax.Array
    entries: tuple[int, ...]
    unit: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.entries)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["left", "right"],
    meta_fields=["separate", "rows", "places", "multiplier", "pieces", "exchanged"],
)
@dataclasses.dataclass(frozen=True)
class OuterProducts:
    """The gradients of B examples, each a stack of sums of outer products.

    Their dimensions are those of `places`: which dimension of the operand each separate one, each
    entry of the left side and each of the right side is; None for a loop around the equation.
    """

    left: Side
    right: Side
    separate: int  # number of dimensions
    rows: int  # number of dimensions
    places: tuple[int | None, ...]
    multiplier: precision.Multiplier
    pieces: int = 1  # in which vectors are cut, as a mesh may have cut them
    exchanged: bool = False

    def norm(self, way: str, scaled: bool = True) -> MeasuredNorm:
        return norm_of([self], way, scaled)

    # Traced once for all uses of one shape, as `norm_of` is.
    @functools.partial(jax.jit, static_argnames="way")
    def weighted_sum(self, factor: jax.Array, keep: Any = None, way: str = "gram") -> jax.Array:
        """`sum_b factor[b] * G_b` in the operand's layout, behind the dimensions of loops."""
        left, right = self.left.values, self.right.values
        if self.scales_left(way):
            left, right = weighted(self.multiplier, left, right, factor, keep)
        else:
            right, left = weighted(self.multiplier, right, left, factor, keep)
        batch = tuple(range(1, 1 + self.separate))
        rows = (0, *range(1 + self.separate, 1 + self.separate + self.rows))
        places, entries = self.places, (*self.left.entries, *self.right.entries)
        if self.left.unit:
            total = self.scattered(left, right)
        else:
            if self.right_places[:1] < self.left_places[:1]:  # as the operand has them
                left, right = right, left
                places, entries = self.turned().places, (*self.right.entries, *self.left.entries)
            left, right = self.multiplier.operand(left), self.multiplier.operand(right)
            if jax.default_backend() == "cpu":
                # Which has no such product of bfloat16 whose result is turned, as by `w.T`.
                left, right = left.astype(self.dtype), right.astype(self.dtype)
            total = jax.lax.dot_general(
                left,
                right,
                ((rows, rows), (batch, batch)),
                precision=self.multiplier.precision,
                preferred_element_type=self.dtype,
            )
        # Entries may have been padded to what matrix units like.
        total = total[(..., *(slice(size) for size in entries))]
        loops = sum(place is None for place in places)
        target = [i if p is None else loops + p for i, p in enumerate(places)]
        return jnp.transpose(total, tuple(np.argsort(target)))

    def scattered(self, index: jax.Array, values: jax.Array) -> jax.Array:
        """Rows added up at the places of their unit vectors: (separate..., left..., right...)."""
        wide = values.astype(precision.accumulation_dtype(values.dtype))
        apart = wide.shape[1 : 1 + self.separate]
        index = jnp.moveaxis(index, 0, self.separate).reshape(*apart, -1)
        entries = wide.shape[1 + self.separate + self.rows :]
        wide = jnp.moveaxis(wide, 0, self.separate).reshape(*apart, -1, *entries)

        def add(index: jax.Array, wide: jax.Array) -> jax.Array:
            table = jnp.zeros((self.left.size, *wide.shape[1:]), wide.dtype)
            # Indices out of range were moved to where the model reads, or their rows to zero.
            return table.at[index].add(wide, mode="promise_in_bounds")

        for _ in range(self.separate):
            add = jax.vmap(add)
        return add(index, wide).reshape(*apart, *self.left.entries, *entries)

    def scales_left(self, way: str) -> bool:
        """Which side takes the coefficient: see `gram.values_are_scaled` and `product_moves`."""
        if self.left.unit or self.right.unit:
            return self.right.unit
        values, gradients = (self.right, self.left) if self.exchanged else (self.left, self.right)
        if way == "product":
            shorter = values.size <= gradients.size
            return (shorter == (self.multiplier.roundoff < 1e-6)) != self.exchanged
        sizes = self.row_count, values.size, gradients.size
        return gram.values_are_scaled(*sizes, self.multiplier.roundoff) != self.exchanged

    @property
    def row_count(self) -> int:
        return math.prod(self.right.values.shape[1 + self.separate :][: self.rows])

    @property
    def dtype(self) -> np.dtype:
        return precision.accumulation_dtype(self.multiplier.dtype)

    def padded(self) -> "OuterProducts":
        """With zeros after vectors whose odd length would keep matrix units idle."""

        def even(side: Side) -> Side:
            if side.unit or len(side.entries) != 1 or not is_odd(side.size):
                return side
            room = [(0, 0, 0)] * (side.values.ndim - 1) + [(0, -side.size % UNIT, 0)]
            values = jax.lax.pad(side.values, jnp.zeros((), side.values.dtype), room)
            return dataclasses.replace(side, values=values)

        return dataclasses.replace(self, left=even(self.left), right=even(self.right))

    def operands(self) -> "OuterProducts":
        """The same with both sides as the multiplier takes them."""
        left, right = (
            s if s.unit else dataclasses.replace(s, values=self.multiplier.operand(s.values))
            for s in (self.left, self.right)
        )
        return dataclasses.replace(self, left=left, right=right)

    @property
    def left_places(self) -> tuple[int | None, ...]:
        """The dimensions of the operand that the left vectors run over."""
        return self.places[self.separate : self.separate + len(self.left.entries)]

    @property
    def right_places(self) -> tuple[int | None, ...]:
        return self.places[self.separate + len(self.left.entries) :]

    def relabelled(self, dimensions: Sequence[int | None]) -> "OuterProducts":
        """With other names for the operand's dimensions, each side's entries in their order."""

        def named(places: Sequence[int | None]) -> list[int]:
            found = [None if p is None else dimensions[p] for p in places]
            return [-1 if name is None else name for name in found]

        first = 1 + self.separate + self.rows
        sides, places = [], named(self.places[: self.separate])
        for side, own in ((self.left, self.left_places), (self.right, self.right_places)):
            names = named(own)
            order = np.argsort(names, kind="stable")
            values = side.values
            if not side.unit:
                values = jnp.transpose(values, (*range(first), *(first + i for i in order)))
            elif list(order) != list(range(len(order))):
                raise ValueError("places of a lookup are in the order of the table")
            sides.append(Side(values, tuple(side.entries[i] for i in order), side.unit))
            places += [names[i] for i in order]
        return dataclasses.replace(self, left=sides[0], right=sides[1], places=tuple(places))

    @property
    def goes_to_kernel(self) -> bool:
        """Whether its pairs of rows are summed by a kernel: on one device, or one shard."""
        if self.left.unit or self.right.unit or self.pieces != 1:
            return False
        return gram.kernel_takes(self.row_count, self.multiplier)

    def turned(self) -> "OuterProducts":
        """The sides exchanged."""
        places = (*self.places[: self.separate], *self.right_places, *self.left_places)
        return dataclasses.replace(
            self, left=self.right, right=self.left, places=places, exchanged=not self.exchanged
        )


def norm_of(uses: Sequence[OuterProducts], way: str, scaled: bool = True) -> MeasuredNorm:
    """Norms of `sum_u G_u` for the uses of one parameter, whose sides have the same entries.

    `scaled`: by powers of two, so that nothing overflows or vanishes. Else `sound` says where the
    numbers were in a range in which that cannot happen.
    """
    if way == "outer":
        (use,) = uses
        return outer_norm(use, scaled)
    return norm_from(uses, scaled, functools.partial(_measured, way=way))


outer_norm = functools.partial(jax.jit, static_argnames="scaled")(outer_product_norms.outer_norm)


@functools.partial(jax.jit, static_argnames="way")
def _measured(uses: Sequence[OuterProducts], way: str) -> MeasuredNorm:
    """Norms without scaling."""
    uses = [use.operands() for use in uses]
    sums = (outer_product_norms.gram_sums if way == "gram" else outer_product_norms.product_sums)(
        uses
    )
    return bounded(sums, *numbers(uses))


def norm_from(
    uses: Sequence[OuterProducts],
    scaled: bool,
    measure: Callable[[Sequence[OuterProducts]], MeasuredNorm],
) -> MeasuredNorm:
    """Norms by `measure`, which may turn out unsound, or of sides that are scaled first."""
    if not scaled:
        return measure(uses)
    uses, exponent = _scale(uses)
    (estimate, upper), sound = measure(uses)
    return MeasuredNorm(Norm(scale_back(estimate, exponent), scale_back(upper, exponent)), sound)


@jax.jit
def bounded(sums: Sums, many: float, others: float) -> MeasuredNorm:
    """The norms that follow from the sums of a form over so many numbers on either side."""
    # Squares that are too small for a float count as the smallest one, and what they could have
    # added to a much larger sum as a tiny part of it.
    left, right = sums.left + many * SMALLEST_SQUARE, sums.right + others * SMALLEST_SQUARE
    square = jnp.maximum(sums.square, 0)
    lost = (sums.right * many + sums.left * others + many * others) * SMALLEST_SQUARE
    upper = root(square + sums.error + lost + LOST * left * right) + sums.moved
    upper = jnp.maximum(upper, sums.absolute / MAX_CANCELLATION)
    vanished = (sums.left == 0) | (sums.right == 0)
    upper = jnp.where(vanished, jnp.maximum(upper, root(left) * root(right)), upper)
    upper = upper * (1 + 32 * precision.unit_roundoff(upper.dtype))
    fits = in_range(sums.left, SOUND) & in_range(sums.right, SOUND)
    return MeasuredNorm(Norm(root(square), upper), fits & jnp.isfinite(upper))


def numbers(uses: Sequence[OuterProducts]) -> tuple[float, float]:
    """How many numbers one example has on either side."""
    left, right = (
        float(sum(math.prod(side.values.shape[1:]) for side in sides))
        for sides in zip(*((u.left, u.right) for u in uses), strict=True)
    )
    return left, right


@jax.jit
def _scale(uses: Sequence[OuterProducts]) -> tuple[list[OuterProducts], jax.Array]:
    """Sides with largest entries near 1 or below, and the exponents (B,) that were taken out."""
    uses = [use.operands() for use in uses]

    def top(side: Side) -> jax.Array:
        if side.unit:
            return jnp.zeros(side.values.shape[:1], np.int32)
        return top_exponent(side.values)

    def times(side: Side, exponent: jax.Array, shift: jax.Array) -> Side:
        if side.unit:
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
        shifts = (none, shift) if use.left.unit else (shift, none)
        sides = times(use.left, left, shifts[0]), times(use.right, right, shifts[1])
        result.append(dataclasses.replace(use, left=sides[0], right=sides[1]))
    return result, largest
