"""Draws the noise of a shard in pieces, so that temporaries have the size of a piece.

A piece is a slice of the shard along one dimension. Its elements keep their offsets in the global
leaf, so the pieces do not affect the noise. A loop over pieces is compiled once, and XLA updates
the array that it carries in place.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np

from bevel.sharding import types
from bevel.sharding.shard_generation import Arrays, Maker, Shard

# A leaf, or several that are drawn together, is drawn in this many pieces, but in pieces of at
# least and at most so many elements. Generators need 8 to 24 bytes of temporaries per element. On a
# GPU, each piece starts a few kernels, so it has to be large: on an H200, pieces of 2**23 elements
# made the noise of GPT-2 a fifth slower.
PIECES = 16
SMALLEST_PIECE = {"cpu": 2**12, "gpu": 2**26}
LARGEST_PIECE = {"cpu": 2**16, "gpu": 2**26}
SHORTEST_RUN = 128  # contiguous elements of a piece: fewer would waste blocks of ChaCha20


def piece_size(elements: int) -> int:
    """Returns the number of elements to draw at once, of a total of `elements`."""
    backend = jax.default_backend()
    smallest, largest = (limits.get(backend, 2**22) for limits in (SMALLEST_PIECE, LARGEST_PIECE))
    return min(max(elements // PIECES, smallest), largest)


def split_dimension(shape: tuple[int, ...], largest: int) -> tuple[int, int] | None:
    """Returns a dimension to split, and the size along it of pieces of at most `largest` elements.

    The size divides the dimension, so that all pieces are alike and start at a multiple of their
    size, as `Shard` promises. Earlier dimensions are preferred, because their pieces have longer
    contiguous runs. Returns None if the array is small, or if no dimension can be divided into
    pieces of a quarter of `largest` or more, such as a vector of prime length.
    """
    elements = math.prod(shape)
    if elements <= largest:
        return None
    run = elements
    for dimension, size in enumerate(shape):
        fewest, most = -(-elements // largest), min(4 * elements // largest, size)
        for count in range(fewest, most + 1):
            if size % count == 0 and run // count >= SHORTEST_RUN:
                return dimension, size // count
        run //= size
    return None


def _loop(
    shard: Shard, together: int, body: Callable[[Shard, int, jax.Array, Arrays], Arrays]
) -> Callable[[Arrays], Arrays] | None:
    """Returns a loop of `body(piece, dimension, start, arrays)` over pieces, or None for one."""
    if not shard.on_one_device:
        return None  # slices of an array that the compiler splits would be communicated
    largest = piece_size(together * math.prod(shard.shape)) // together
    split = split_dimension(shard.shape, max(largest, 1))
    if split is None:
        return None
    dimension, size = split

    def step(index: jax.Array, arrays: Arrays) -> Arrays:
        start = index.astype(np.uint32) * np.uint32(size)
        return body(piece_at(start), dimension, start, arrays)

    def piece_at(start: jax.Array) -> Shard:
        shape, starts = list(shard.shape), list(shard.starts)
        shape[dimension], starts[dimension] = size, starts[dimension] + start
        return shard._replace(shape=tuple(shape), starts=tuple(starts))

    count = shard.shape[dimension] // size
    return lambda arrays: jax.lax.fori_loop(np.int32(0), np.int32(count), step, arrays)


@dataclasses.dataclass(frozen=True)
class DrawnInPieces:
    """A `Maker` of what `make` returns, drawn in pieces. `together` is the size of its `vmap`."""

    make: Maker
    together: int = 1

    def __call__(self, words: jax.Array, shard: Shard) -> Arrays:
        def write(piece: Shard, dimension: int, start: jax.Array, arrays: Arrays) -> Arrays:
            return tuple(
                jax.lax.dynamic_update_slice_in_dim(x, drawn, start, dimension)
                for x, drawn in zip(arrays, self.make(words, piece), strict=True)
            )

        loop = _loop(shard, self.together, write)
        if loop is None:
            return self.make(words, shard)
        results = jax.eval_shape(lambda: self.make(words, shard))
        return loop(tuple(types.zeros_of_type(x) for x in results))


@dataclasses.dataclass(frozen=True)
class AddedInPieces:
    """An `Updater` that adds `scale` times the draws of `make`, in place and in pieces.

    It gets leaves of one shape, and a row of `words` for each of them.
    """

    make: Maker
    scale: float

    def __call__(self, words: jax.Array, shard: Shard, leaves: Arrays) -> Arrays:
        def add(piece: Shard, dimension: int, start: jax.Array, leaves: Arrays) -> Arrays:
            size = piece.shape[dimension]
            parts = (jax.lax.dynamic_slice_in_dim(x, start, size, dimension) for x in leaves)
            sums = self._sums(words, piece, tuple(parts))
            return tuple(
                jax.lax.dynamic_update_slice_in_dim(x, total, start, dimension)
                for x, total in zip(leaves, sums, strict=True)
            )

        loop = _loop(shard, len(leaves), add)
        return self._sums(words, shard, leaves) if loop is None else loop(leaves)

    def _sums(self, words: jax.Array, shard: Shard, leaves: Arrays) -> Arrays:
        if len(leaves) == 1:
            draws = self.make(words[0], shard)
            if jax.default_backend() == "cpu":
                # XLA does not vectorize a draw that is fused with the update of a slice.
                draws = jax.lax.optimization_barrier(draws)
        else:
            (rows,) = jax.vmap(lambda key_data: self.make(key_data, shard))(words)
            # Without the barrier XLA would draw the noise of each leaf in a separate program.
            rows = jax.lax.optimization_barrier(rows)
            draws = tuple(rows[leaf] for leaf in range(len(leaves)))
        return tuple(x + z * z.dtype.type(self.scale) for x, z in zip(leaves, draws, strict=True))
