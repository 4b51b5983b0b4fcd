"""Leaves of different shapes as one list of rows, so that one program draws the noise of all.

A shard of a leaf consists of runs: elements that are contiguous in the global leaf. In the view,
every run is cut into rows of the same width, and the rows of all leaves follow one another. What a
row needs, the number of its leaf and its offset there, is computed from the row's number and a
table with one column per leaf. So the program that draws a number of rows does not depend on the
shapes of the leaves, and is compiled once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.noise_addition.offsets import flat_offsets
from bevel.noise_addition.pieces import chunk_size
from bevel.sharding import types
from bevel.sharding.shard_generation import Shard, constant

MOST_LEAVES_TO_COMPARE = 32  # with more of them, the leaf of a row is found by binary search


class _Rows(NamedTuple):
    """Some rows of a view: the leaf of each, and the 32-bit offset in it."""

    leaf: jax.Array
    offset: jax.Array  # of the first element; with `aligned`, rounded down to the row's width


@dataclasses.dataclass(frozen=True)
class _Runs:
    """The runs of one shard. `levels` are (size, stride) of the dimensions that number them."""

    count: int
    length: int
    lead: int
    levels: tuple[tuple[int, int], ...]
    stray: int  # how many elements of a row may come before its run, with `aligned`

    @classmethod
    def of(cls, shard: Shard, multiple: int) -> "_Runs":
        shape, full = shard.shape, shard.full_shape
        strides = [math.prod(full[d + 1 :]) for d in range(len(full))]
        split = [d for d in range(len(shape)) if shape[d] != full[d]]
        lead = max(split, default=0)
        levels: list[tuple[int, int]] = []
        for d in range(lead):
            if levels and levels[-1][1] == shape[d] * strides[d]:
                levels[-1] = (levels[-1][0] * shape[d], strides[d])
            elif shape[d] != 1:
                levels.append((shape[d], strides[d]))
        length = math.prod(shape[lead:])
        # Runs start at multiples of this: shards start at multiples of their size.
        common = math.gcd(multiple, *(shape[d] * strides[d] for d in split), *_strides(levels))
        return cls(math.prod(shape[:lead]), length, lead, tuple(levels), multiple - common)


def _strides(levels: list[tuple[int, int]]) -> list[int]:
    return [stride for _, stride in levels]


@dataclasses.dataclass(frozen=True, eq=False)
class FlatView:
    """The elements of several shards, in rows of `width` elements.

    Attributes:
      aligned: rows start at multiples of `width` in the global leaf, as the blocks of a cipher do.
        Otherwise each run starts with a row.
    """

    shards: tuple[Shard, ...]
    width: int
    aligned: bool = False

    @functools.cached_property
    def runs(self) -> list[_Runs]:
        return [_Runs.of(shard, self.width if self.aligned else 1) for shard in self.shards]

    @functools.cached_property
    def rows_per_run(self) -> list[int]:
        return [-(-(runs.length + runs.stray) // self.width) for runs in self.runs]

    @functools.cached_property
    def first_rows(self) -> list[int]:
        """The number of each leaf's first row, and of all rows."""
        counts = [r.count * rows for r, rows in zip(self.runs, self.rows_per_run, strict=True)]
        return np.cumsum([0, *counts]).tolist()

    @property
    def num_rows(self) -> int:
        return self.first_rows[-1]

    def locate(self, index: jax.Array) -> _Rows:
        """Finds the rows with these numbers. Those past the last one are rows of the last leaf."""
        leaf = self._leaf_of(index)
        levels = max((len(runs.levels) for runs in self.runs), default=0)
        columns = [
            [first, max(rows, 1), *sum(_padded(runs.levels, levels), ())]
            for first, rows, runs in zip(
                self.first_rows, self.rows_per_run, self.runs, strict=False
            )
        ]
        table = np.array(columns, np.int64).astype(np.uint32).T
        first, rows, *sizes = jnp.take(constant(table), leaf, axis=1, mode="clip")
        offset = jnp.take(self._starts(), leaf, mode="clip")
        within = index - first
        run, row = within // rows, within % rows
        for level in reversed(range(levels)):
            size, stride = sizes[2 * level : 2 * level + 2]
            offset = offset + (run % size) * stride
            run = run // size
        if self.aligned:
            offset = offset & np.uint32(2**32 - self.width)
        return _Rows(leaf, offset + row * np.uint32(self.width))

    def _leaf_of(self, index: jax.Array) -> jax.Array:
        # Of all leaves but the first. NumPy raises if the rows cannot be numbered with 32 bits.
        firsts = np.array(self.first_rows[1:], np.uint32)[:-1]
        if not firsts.size:
            return jnp.zeros_like(index)
        if firsts.size < MOST_LEAVES_TO_COMPARE:
            return (index[:, None] >= constant(firsts)[None]).sum(axis=1, dtype=np.uint32)
        return jnp.searchsorted(constant(firsts), index, side="right").astype(np.uint32)

    def _starts(self) -> jax.Array:
        """The offset of each shard's first element."""

        def start(shard: Shard) -> jax.Array:
            strides = [math.prod(shard.full_shape[d + 1 :]) for d in range(len(shard.shape))]
            pairs = zip(shard.starts, strides, strict=True)
            return sum(
                (jnp.asarray(s, np.uint32) * np.uint32(stride) for s, stride in pairs if stride),
                jnp.zeros((), np.uint32),
            )

        return jnp.stack([start(shard) for shard in self.shards])

    def filled(self, draw: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Fills the view in a loop over chunks: `draw(index)` returns the rows of these numbers.

        Both return their elements one after the other. The loop is compiled once. It writes whole
        rows, because a view may have more elements than 32 bits can number.
        """
        count = chunk_size(self.num_rows * self.width) // self.width or 1
        chunks = -(-self.num_rows // count)
        if chunks <= 1:
            # The barrier keeps XLA from drawing the noise of each leaf in a separate program.
            return jax.lax.optimization_barrier(draw(_numbers(np.uint32(0), self.num_rows)))

        def step(chunk: jax.Array, rows: jax.Array) -> jax.Array:
            first = chunk.astype(np.uint32) * np.uint32(count)
            drawn = jax.lax.optimization_barrier(draw(_numbers(first, count)))
            drawn = drawn.reshape(count, self.width)
            return jax.lax.dynamic_update_slice_in_dim(rows, drawn, first, 0)

        like = jax.eval_shape(draw, jax.ShapeDtypeStruct((count,), np.uint32))
        empty = jnp.zeros((chunks * count, self.width), like.dtype)
        empty = types.as_varying(empty, types.varying_axes(self._starts()))
        return jax.lax.fori_loop(np.int32(0), np.int32(chunks), step, empty).reshape(-1)

    def leaf(self, flat: jax.Array, number: int) -> jax.Array:
        """Takes a shard out of the filled view."""
        shard, runs = self.shards[number], self.runs[number]
        first, end = (row * self.width for row in self.first_rows[number : number + 2])
        rows = flat[first:end].reshape(runs.count, self.rows_per_run[number] * self.width)
        if runs.stray:
            phase = flat_offsets(shard, runs.lead)[1].reshape(-1) % np.uint32(self.width)
            if all(stride % self.width == 0 for _, stride in runs.levels):
                rows = jax.lax.dynamic_slice_in_dim(rows, phase[0], runs.length, axis=1)
            else:
                lanes = jax.lax.broadcasted_iota(np.uint32, (runs.count, runs.length), 1)
                rows = jnp.take_along_axis(rows, phase[:, None] + lanes, axis=1)
        return rows[:, : runs.length].reshape(shard.shape)


def _numbers(first: jax.Array | np.uint32, count: int) -> jax.Array:
    return first + jax.lax.iota(np.uint32, count)


def _padded(levels: tuple[tuple[int, int], ...], count: int) -> list[tuple[int, ...]]:
    return [*[(1, 0)] * (count - len(levels)), *levels]
