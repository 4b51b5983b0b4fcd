"""ChaCha20 as a pseudorandom generator for JAX, with 256-bit keys.

A block has 16 words of 32 bits, in the layout of D. J. Bernstein's cipher:

| words    | content                                                             |
| -------- | ------------------------------------------------------------------- |
| 0 to 3   | "expand 32-byte k"                                                  |
| 4 to 11  | the key                                                             |
| 12, 13   | the 64-bit block number, low word first                             |
| 14, 15   | the nonce: a word for free use by the purpose, and a `BlockPurpose` |

Random bits, `split` and `fold_in` use different nonces, so no output of one is ever part of the
output of another. RFC 8439 splits words 12 to 15 into a 32-bit counter and a 96-bit nonce instead;
the block function is the same.
"""

import enum
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from bevel.noise_addition import chacha20_kernel
from bevel.noise_addition.offsets import WordPair, flat_offsets, plus, shifted
from bevel.sharding import types
from bevel.sharding.shard_generation import Arrays, Shard

KEY_WORDS = 8
BLOCK_BITS = 512
CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")
COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
DOUBLE_ROUNDS = 10


class BlockPurpose(enum.IntEnum):
    """The last word of the nonce: what the block is used for."""

    BITS = 0
    SPLIT = 1
    FOLD_IN = 2
    SEED = 3
    DISCRETE = 4


@jax.jit
def block(words: Sequence[jax.Array]) -> jax.Array:
    """The block function: maps 16 words, arrays of one shape, to 16 words.

    The `jit` lets leaves of one shape share a trace, which has more than a thousand equations.
    """
    rounds = _rolled_rounds if jax.default_backend() == "cpu" else unrolled_rounds
    return jnp.stack(words) + rounds(words)


def unrolled_rounds(words: Sequence[jax.Array]) -> jax.Array:
    """All rounds as one elementwise program, for accelerators that do not use the kernel."""
    for _ in range(DOUBLE_ROUNDS):
        words = _double_round(words)
    return jnp.stack(words)


def _double_round(words: Sequence[jax.Array]) -> list[jax.Array]:
    state = list(words)
    for indices in COLUMNS + DIAGONALS:
        quarter = _quarter_round(*(state[i] for i in indices))
        for i, word in zip(indices, quarter, strict=True):
            state[i] = word
    return state


def _rolled_rounds(words: Sequence[jax.Array]) -> jax.Array:
    """A loop over double rounds, for CPUs, where the unrolled form takes seconds to compile.

    It works on rows of four words. Rotating the rows turns the diagonals into columns.
    """
    rows = tuple(jnp.stack(words[i : i + 4]) for i in range(0, 16, 4))

    def rotate_row(row: jax.Array, by: int) -> jax.Array:
        return jnp.concatenate([row[by:], row[:by]])

    def double_round(_: int, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        for rotations in ((1, 2, 3), (3, 2, 1)):
            first, *others = _quarter_round(*rows)
            rows = first, *(rotate_row(row, by) for row, by in zip(others, rotations, strict=True))
        return rows

    return jnp.concatenate(jax.lax.fori_loop(0, DOUBLE_ROUNDS, double_round, rows))


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
    key: jax.Array, counter: WordPair, purpose: BlockPurpose, word: jax.Array | int = 0
) -> jax.Array:
    """Returns the blocks numbered by `counter`, with the nonce (word, purpose): (16, ...).

    `key` has 8 words, or 8 words for each block.
    """
    high, low = counter
    scalars = [*CONSTANTS, *(key[i] for i in range(KEY_WORDS))]
    nonce = [jnp.asarray(word, np.uint32), np.uint32(purpose)]
    words = [jnp.broadcast_to(x, low.shape) for x in (*scalars, low, high, *nonce)]
    # All inputs of a loop need the varying axes that its results have.
    axes = frozenset().union(*map(types.varying_axes, words))
    if chacha20_kernel.available() and not jnp.ndim(word) and low.size:
        zero = jnp.zeros((), np.uint32)
        keys = types.as_varying(key, axes) if jnp.ndim(key) > 1 else None
        shared = [zero] * KEY_WORDS if keys is not None else list(scalars[len(CONSTANTS) :])
        start = jnp.stack([jnp.asarray(x) for x in (*CONSTANTS, *shared, zero, zero, *nonce)])
        start, high, low = (types.as_varying(x, axes) for x in (start, high, low))
        return chacha20_kernel.blocks(start, high, low, _double_round, DOUBLE_ROUNDS, keys=keys)
    return block([types.as_varying(x, axes) for x in words])


def stream(
    key: jax.Array, shard: Shard, width: int, transform: Callable[[Arrays], Arrays] | None = None
) -> Arrays:
    """Returns `width` bits per element of a shard: the key's stream in row-major order.

    The stream is little endian: with a width of 8 the results are its bytes. A width of 64 gives
    two words, high and low; a smaller width gives one word, with zeros in its upper bits.
    `transform` is an elementwise function of the bits of all blocks, used or not.

    A shard computes the blocks that contain its rows and drops the rest of these blocks. A row is
    the last dimension, if that fills whole blocks. Otherwise a row spans all dimensions from the
    last split one on, so that only a few rows, or one, are not aligned with blocks.
    """
    if not shard.shape:
        return tuple(x.reshape(()) for x in stream(key, Shard.all_of((1,)), width, transform))
    lanes = BLOCK_BITS // width
    shape, full_shape = shard.shape, shard.full_shape
    split = [d for d in range(len(shape)) if shape[d] != full_shape[d]]
    lead = len(shape) - 1 if full_shape[-1] % lanes == 0 else max(split, default=0)
    row, full_row = (int(np.prod(x[lead:], dtype=object)) for x in (shape, full_shape))
    rows_fit = lead == 0 or full_row % lanes == 0
    fits = rows_fit and (row % lanes == 0 or row == full_row)
    count = -(-row // lanes) if fits else -(-(row + lanes - 1) // lanes)

    start = flat_offsets(shard, lead)
    high, low = shifted(start, lanes.bit_length() - 1)
    block_in_row = jax.lax.broadcasted_iota(np.uint32, (*shape[:lead], count), lead)
    counter = plus((high[..., None], low[..., None]), block_in_row)
    words = blocks(key, counter, BlockPurpose.BITS)

    phase = start[1] % np.uint32(lanes)  # lane of a row's first element in its block

    def select(lanes_of_blocks: jax.Array) -> jax.Array:
        """The elements of the shard, from blocks whose lanes are the last dimension."""
        x = lanes_of_blocks.reshape(*shape[:lead], count * lanes)
        if fits:
            x = x[..., :row]
        elif rows_fit:
            x = jax.lax.dynamic_slice_in_dim(x, phase[(0,) * lead], row, axis=-1)
        else:
            indices = phase[..., None] + jax.lax.broadcasted_iota(
                np.uint32, (*shape[:lead], row), lead
            )
            x = jnp.take_along_axis(x, indices, axis=-1)
        return x.reshape(shape)

    if width == 64:
        bits: Arrays = (words[1::2], words[0::2])
    elif width == 32:
        bits = (words,)
    else:
        shifts = np.arange(0, 32, width, dtype=np.uint32).reshape(1, -1, *(1,) * block_in_row.ndim)
        parts = (words[:, None] >> shifts) & np.uint32(2**width - 1)
        bits = (jax.lax.collapse(parts, 0, 2),)
    if transform is not None:
        # Without the barrier XLA would compute a block again for each of its lanes.
        bits = jax.lax.optimization_barrier(transform(bits))
    if width == 64:
        # A stack, because a GPU transposes eight of sixteen words at half the speed.
        return tuple(select(jnp.stack(list(x), axis=-1)) for x in bits)
    return tuple(select(jnp.moveaxis(x, 0, -1)) for x in bits)


# The functions of a JAX PRNG implementation.


def _seed(number: jax.Array) -> jax.Array:
    """Returns the key of an integer seed."""
    low = number.astype(np.uint32)
    high = (number >> 32).astype(np.uint32) if number.dtype.itemsize == 8 else jnp.zeros_like(low)
    words = [low, high, *(jnp.zeros_like(low) for _ in range(KEY_WORDS - 2))]
    return _child_keys(jnp.stack(words), (jnp.zeros_like(low),) * 2, BlockPurpose.SEED)


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return _child_keys(key, flat_offsets(Shard.all_of(shape)), BlockPurpose.SPLIT)


def _fold_in(key: jax.Array, number: jax.Array | int) -> jax.Array:
    low = jnp.asarray(number).astype(np.uint32)
    return _child_keys(key, (jnp.zeros_like(low), low), BlockPurpose.FOLD_IN)


def _child_keys(key: jax.Array, counter: WordPair, purpose: BlockPurpose) -> jax.Array:
    """Returns the first halves of the blocks numbered by `counter`, as keys."""
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
"""Pass it as `impl=` to `jax.random.key` or `jax.random.wrap_key_data`."""
