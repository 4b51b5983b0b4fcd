"""Draws the noise of a shard in pieces, so that temporaries have the size of a piece.

A piece is a slice of the shard along one dimension. Its elements keep their offsets in the global
leaf, so the pieces do not affect the noise. A loop over pieces is compiled once, and XLA updates
the array that it carries in place.
"""

import math
from collections.abc import Callable

import jax
import numpy as np

from bevel.sharding import types
from bevel.sharding.shard_generation import Arrays, Shard

Maker = Callable[[jax.Array, Shard], Arrays]
"""Returns the noise of a shard, from the key data of its leaf."""

# A leaf, or several that are drawn together, is drawn in this many pieces, but in pieces of at
# least and at most so many elements. Generators need 8 to 24 bytes of temporaries per element. On a
# GPU, each piece starts a few kernels, so it has to be large: on an H200, pieces of 2**23 elements
# made the noise of GPT-2 a fifth slower.
PIECES = 16
SMALLEST_PIECE = {"cpu": 2**12, "gpu": 2**26}
LARGEST_PIECE = {"cpu": 2**16, "gpu": 2**26}
CHUNKS, SMALLEST_CHUNK = 64, 2**9  # the same for a `FlatView` on a CPU
SHORTEST_RUN = 128  # contiguous elements of a piece: fewer would waste blocks of ChaCha20


def piece_size(elements: int) -> int:
    """Returns the number of elements to draw at once, of a total of `elements`."""
    backend = jax.default_backend()
    smallest, largest = (limits.get(backend, 2**22) for limits in (SMALLEST_PIECE, LARGEST_PIECE))
    return min(max(elements // PIECES, smallest), largest)


def chunk_size(elements: int) -> int:
    """Returns the number of elements of a `FlatView` to draw at once.

    On a CPU, small views have small chunks, because a gradient may be small altogether.
    """
    if jax.default_backend() != "cpu":
        return piece_size(elements)
    return min(max(elements // CHUNKS, SMALLEST_CHUNK), LARGEST_PIECE["cpu"])


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


def fits_pieces(shard: Shard, together: int) -> bool:
    """Whether several leaves of one shape are large, and can be divided into pieces."""
    return _split(shard, together) is not None


def _split(shard: Shard, together: int) -> tuple[int, int] | None:
    largest = piece_size(together * math.prod(shard.shape)) // together
    return split_dimension(shard.shape, max(largest, 1))


def _loop(
    shard: Shard,
    together: int,
    body: Callable[[Shard, int, jax.Array, Arrays], Arrays],
    arrays: Arrays,
) -> Arrays:
    """Returns the arrays after `body(piece, dimension, start, arrays)` of every piece."""
    split = _split(shard, together)
    assert split is not None
    dimension, size = split

    def step(index: jax.Array, arrays: Arrays) -> Arrays:
        start = index.astype(np.uint32) * np.uint32(size)
        shape, starts = list(shard.shape), list(shard.starts)
        shape[dimension], starts[dimension] = size, starts[dimension] + start
        piece = shard._replace(shape=tuple(shape), starts=tuple(starts))
        return body(piece, dimension, start, arrays)

    count = shard.shape[dimension] // size
    return jax.lax.fori_loop(np.int32(0), np.int32(count), step, arrays)


def drawn_in_pieces(make: Maker, words: jax.Array, shard: Shard) -> Arrays:
    """Draws `make(row, shard)` in pieces, for every row of `words`."""
    count = len(words)

    def write(piece: Shard, dimension: int, start: jax.Array, arrays: Arrays) -> Arrays:
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(x, drawn, start, dimension)
            for x, drawn in zip(arrays, _rows(make, words, piece), strict=True)
        )

    (result,) = jax.eval_shape(lambda: make(words[0], shard))
    return _loop(shard, count, write, tuple(types.zeros_of_type(result) for _ in range(count)))


def added_in_pieces(
    make: Maker, scale: float, words: jax.Array, shard: Shard, leaves: Arrays
) -> Arrays:
    """Adds `scale` times what `make` returns to leaves of one shape, in place and in pieces.

    `words` has a row for each leaf.
    """

    def add(piece: Shard, dimension: int, start: jax.Array, leaves: Arrays) -> Arrays:
        size = piece.shape[dimension]
        sums = []
        for x, z in zip(leaves, _rows(make, words, piece), strict=True):
            part = jax.lax.dynamic_slice_in_dim(x, start, size, dimension)
            total = part + z * z.dtype.type(scale)
            sums.append(jax.lax.dynamic_update_slice_in_dim(x, total, start, dimension))
        return tuple(sums)

    return _loop(shard, len(leaves), add, leaves)


def _rows(make: Maker, words: jax.Array, shard: Shard) -> Arrays:
    """Returns `make(row, shard)` for every row of `words`."""
    if len(words) == 1:
        draws = make(words[0], shard)
        # XLA does not vectorize a draw that is fused with the update of a slice.
        return jax.lax.optimization_barrier(draws) if jax.default_backend() == "cpu" else draws
    (rows,) = jax.vmap(lambda row: make(row, shard))(words)
    # Without the barrier XLA would draw the noise of each leaf in a separate program.
    rows = jax.lax.optimization_barrier(rows)
    return tuple(rows[leaf] for leaf in range(len(words)))
