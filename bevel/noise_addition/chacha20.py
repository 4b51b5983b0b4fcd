"""ChaCha20 as a pseudorandom generator for JAX, with keys of 256 bits.

The state of one block, 16 words of 32 bits, in the layout of D. J. Bernstein's cipher:

| words    | hold                                                               |
| -------- | ------------------------------------------------------------------ |
| 0 to 3   | "expand 32-byte k"                                                 |
| 4 to 11  | the key                                                            |
| 12, 13   | the number of the block, 64 bits, low word first                   |
| 14, 15   | the nonce: a word that the purpose is free to use, and the purpose |

Purposes are listed in `Purpose`. Bits, splits and folds read blocks with different nonces, so what
one of them gives is never part of what another gives. RFC 8439 reads words 12 to 15 as a counter of
32 bits and a nonce of 96; the block function is the same.
"""

import enum
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from bevel.noise_addition import chacha20_kernel
from bevel.noise_addition.offsets import Wide, flat_offsets, plus, shifted
from bevel.sharding import types
from bevel.sharding.shard_generation import Arrays, Shard

KEY_WORDS = 8
BLOCK_BITS = 512
CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
DOUBLE_ROUNDS = 10


class BlockPurpose(enum.IntEnum):
    """The last word of the nonce: what a block is read for."""

    BITS = 0
    SPLIT = 1
    FOLD_IN = 2
    SEED = 3
    DISCRETE = 4


@jax.jit
def block(words: Sequence[jax.Array]) -> jax.Array:
    """The block function: from 16 words to 16 words, for arrays of any one shape.

    Under `jit`, so that leaves of one shape share its trace: it has more than a thousand equations.
    """
    rounds = _rolled_rounds if jax.default_backend() == "cpu" else unrolled_rounds
    return jnp.stack(words) + rounds(words)


def unrolled_rounds(words: Sequence[jax.Array]) -> jax.Array:
    """All rounds as one elementwise program, for accelerators without the kernel."""
    for _ in range(DOUBLE_ROUNDS):
        words = _double_round(words)
    return jnp.stack(words)


def _double_round(words: Sequence[jax.Array]) -> list[jax.Array]:
    state = list(words)
    for places in COLUMNS + DIAGONALS:
        quarter = _quarter_round(*(state[p] for p in places))
        for place, word in zip(places, quarter, strict=True):
            state[place] = word
    return state


def _rolled_rounds(words: Sequence[jax.Array]) -> jax.Array:
    """A loop over double rounds, on rows of four words: for CPUs, where the other takes seconds to
    compile. Turning the rows makes columns of the diagonals."""
    rows = tuple(jnp.stack(words[i : i + 4]) for i in range(0, 16, 4))

    def turned(row: jax.Array, by: int) -> jax.Array:
        return jnp.concatenate([row[by:], row[:by]])

    def both(_: int, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        for turns in ((1, 2, 3), (3, 2, 1)):
            first, *others = _quarter_round(*rows)
            rows = first, *(turned(row, by) for row, by in zip(others, turns, strict=True))
        return rows

    return jnp.concatenate(jax.lax.fori_loop(0, DOUBLE_ROUNDS, both, rows))


def _quarter_round(
    a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(x: jax.Array, bits: int) -> jax.Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def blocks(
    key: jax.Array, counter: Wide, purpose: BlockPurpose, word: jax.Array | int = 0
) -> jax.Array:
    """The blocks with the given numbers: the 16 words, then the counter's dimensions."""
    high, low = counter
    scalars = [*CONSTANTS, *(key[i] for i in range(KEY_WORDS))]
    nonce = [jnp.asarray(word, np.uint32), np.uint32(purpose)]
    words = [jnp.broadcast_to(x, low.shape) for x in (*scalars, low, high, *nonce)]
    # A loop needs the type that its values have in the end, from the start.
    axes = frozenset().union(*map(types.varying_axes, words))
    if chacha20_kernel.available() and not jnp.ndim(word) and low.size:
        none = jnp.zeros((), np.uint32)
        start = jnp.stack([jnp.asarray(x) for x in (*scalars, none, none, *nonce)])
        start, high, low = (types.as_varying(x, axes) for x in (start, high, low))
        return chacha20_kernel.blocks(start, high, low, _double_round, DOUBLE_ROUNDS)
    return block([types.as_varying(x, axes) for x in words])


def stream(
    key: jax.Array, piece: Shard, width: int, then: Callable[[Arrays], Arrays] | None = None
) -> Arrays:
    """`width` bits for each element of a piece: the key's stream, read in row-major order.

    Little endian, so that 8 bits at a time give the stream's bytes. 64 bits come as two words, high
    and low, fewer as one word with zeros above. `then`, an elementwise function, is applied to
    them, also to those of the blocks that are left out.

    A piece reads the blocks that hold its rows, and leaves out what lies between and around them.
    A row is the last dimension if it fills whole blocks. Otherwise all dimensions from the last
    one that is cut: then there are few rows, or one, to fit to blocks.
    """
    if not piece.shape:
        return tuple(x.reshape(()) for x in stream(key, Shard.all_of((1,)), width, then))
    lanes = BLOCK_BITS // width
    shape, whole = piece.shape, piece.whole
    cut = [d for d in range(len(shape)) if shape[d] != whole[d]]
    lead = len(shape) - 1 if whole[-1] % lanes == 0 else max(cut, default=0)
    row, whole_row = (int(np.prod(x[lead:], dtype=object)) for x in (shape, whole))
    rows_fit = lead == 0 or whole_row % lanes == 0
    fits = rows_fit and (row % lanes == 0 or row == whole_row)
    count = -(-row // lanes) if fits else -(-(row + lanes - 1) // lanes)

    start = flat_offsets(piece, lead)
    high, low = shifted(start, lanes.bit_length() - 1)
    nth = jax.lax.broadcasted_iota(np.uint32, (*shape[:lead], count), lead)
    counter = plus((high[..., None], low[..., None]), nth)
    words = blocks(key, counter, BlockPurpose.BITS)

    phase = start[1] % np.uint32(lanes)  # of a row's first element in its block

    def own(lanes_of_blocks: jax.Array) -> jax.Array:
        """The elements of the piece, from all blocks, whose lanes are the last dimension."""
        x = lanes_of_blocks.reshape(*shape[:lead], count * lanes)
        if fits:
            x = x[..., :row]
        elif rows_fit:
            x = jax.lax.dynamic_slice_in_dim(x, phase[(0,) * lead], row, axis=-1)
        else:
            places = phase[..., None] + jax.lax.broadcasted_iota(
                np.uint32, (*shape[:lead], row), lead
            )
            x = jnp.take_along_axis(x, places, axis=-1)
        return x.reshape(shape)

    if width == 64:
        found: Arrays = (words[1::2], words[0::2])
    elif width == 32:
        found = (words,)
    else:
        shifts = np.arange(0, 32, width, dtype=np.uint32).reshape(1, -1, *(1,) * nth.ndim)
        parts = (words[:, None] >> shifts) & np.uint32(2**width - 1)
        found = (jax.lax.collapse(parts, 0, 2),)
    if then is not None:
        # Without the barrier XLA would compute what is read side by side once for each lane.
        found = jax.lax.optimization_barrier(then(found))
    if width == 64:
        # Stacked: a GPU transposes eight of sixteen words at half the speed.
        return tuple(own(jnp.stack(list(x), axis=-1)) for x in found)
    return tuple(own(jnp.moveaxis(x, 0, -1)) for x in found)


# The JAX implementation.


def _seed(number: jax.Array) -> jax.Array:
    """The key of an integer."""
    low = number.astype(np.uint32)
    high = (number >> 32).astype(np.uint32) if number.dtype.itemsize == 8 else jnp.zeros_like(low)
    words = [low, high, *(jnp.zeros_like(low) for _ in range(KEY_WORDS - 2))]
    return _child(jnp.stack(words), (jnp.zeros_like(low),) * 2, BlockPurpose.SEED)


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _child(key, flat_offsets(Shard.all_of(shape)), BlockPurpose.SPLIT)


def _fold_in(key: jax.Array, number: jax.Array | int) -> jax.Array:
    low = jnp.asarray(number).astype(np.uint32)
    return _child(key, (jnp.zeros_like(low), low), BlockPurpose.FOLD_IN)


def _child(key: jax.Array, counter: Wide, purpose: BlockPurpose) -> jax.Array:
    """Keys that are the first halves of the numbered blocks."""
    return jnp.moveaxis(blocks(key, counter, purpose)[:KEY_WORDS], 0, -1)


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    parts = stream(key, Shard.all_of(shape), bit_width)
    if bit_width == 64:
        high, low = (x.astype(np.uint64) for x in parts)
        return (high << np.uint64(32)) | low
    return parts[0].astype(f"uint{bit_width}")


CHACHA20 = define_prng_impl(
    key_shape=(KEY_WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="c20",
)
"""The `impl=` of `jax.random.key` and `jax.random.wrap_key_data`."""
