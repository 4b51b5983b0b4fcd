"""Standard normal samples, each from 64 random bits.

`jax.random.normal` in float32 uses 23 random bits and never exceeds 5.42 standard deviations, which
is noticeable over 1e8 coordinates. Here a sample is the quantile of a 64-bit uniform number, and
reaches 9.2 standard deviations.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jax.scipy.special import ndtri

from bevel.noise_addition import chacha20
from bevel.noise_addition.flat_view import FlatView
from bevel.noise_addition.offsets import flat_offsets
from bevel.sharding import types
from bevel.sharding.shard_generation import Arrays, Shard

BLOCK = 8  # numbers of 64 bits in a block of ChaCha20
MOST_PADDING = 0.05  # numbers of threefry that are drawn and not used


def random_bits(
    generator: str,
    key_data: jax.Array,
    shard: Shard,
    transform: Callable[[Arrays], Arrays] = lambda bits: bits,
) -> Arrays:
    """Returns `transform` of 64 random bits per element of a shard.

    The bits are a function of the leaf's key data and the element's offset, and equal those
    of `jax.random.bits` for the whole leaf. ChaCha20 reads its stream in row-major order; threefry
    encrypts the offset. (For leaves of 2**32 elements or more, JAX's threefry counts differently.)
    """
    if generator == "chacha20":
        return chacha20.stream(key_data, shard, 64, transform)
    offsets = flat_offsets(shard)
    axes = frozenset().union(*map(types.varying_axes, offsets))
    key = (types.as_varying(key_data[i], axes) for i in range(2))
    counters = (types.as_varying(x, axes) for x in offsets)
    return transform(tuple(threefry2x32_p.bind(*key, *counters)))


@dataclasses.dataclass(frozen=True)
class RandomNumbers:
    """Makes one number per element of a shard: `from_bits` of its 64 random bits."""

    generator: str
    from_bits: Callable[[Arrays, np.dtype], jax.Array]
    dtype: np.dtype
    in_pieces: ClassVar[bool] = True

    def __call__(self, key_data: jax.Array, shard: Shard) -> Arrays:
        return random_bits(
            self.generator, key_data, shard, lambda bits: (self.from_bits(bits, self.dtype),)
        )

    def of_leaves(self, key_data: jax.Array, shards: Sequence[Shard]) -> Arrays:
        """Makes the numbers of several leaves in one loop, whatever their shapes.

        Row k of `key_data` is the key data of leaf k. Leaves have at most 2**32 elements.
        """
        aligned = self.generator == "chacha20"
        view = FlatView(tuple(shards), BLOCK if aligned else _row_width(shards), aligned)
        flat = view.filled(lambda index: self._rows(key_data, view, index))
        return tuple(view.leaf(flat, number) for number in range(len(shards)))

    def _rows(self, key_data: jax.Array, view: FlatView, index: jax.Array) -> jax.Array:
        leaf, offset = view.locate(index)
        words = jnp.take(key_data.T, leaf, axis=1, mode="clip")
        # Without the barrier XLA would look up the leaf again for every element of a row.
        words, offset = jax.lax.optimization_barrier((words, offset))
        axes = types.varying_axes(offset)
        words = types.as_varying(words, axes)
        if self.generator == "chacha20":
            zero = jnp.zeros_like(offset)
            counter = zero, offset // np.uint32(BLOCK)
            block = chacha20.blocks(words, counter, chacha20.BlockPurpose.BITS)
            numbers = self.from_bits((block[1::2], block[0::2]), self.dtype)
            # Without the barrier XLA would compute a block again for each of its lanes.
            return jnp.stack(list(jax.lax.optimization_barrier(numbers)), axis=-1).reshape(-1)
        low = offset[:, None] + jax.lax.iota(np.uint32, view.width)[None]
        bits = _threefry(words[:, :, None], jnp.zeros_like(low), low)
        return self.from_bits(bits, self.dtype).reshape(-1)


ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def _threefry(key: jax.Array, high: jax.Array, low: jax.Array) -> Arrays:
    """`threefry2x32_p` with a key for each row, as one elementwise program.

    JAX's own is a loop on a CPU, which would keep the keys of all elements in memory.
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    high, low = high + keys[0], low + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            high = high + low
            low = high ^ ((low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation)))
        high = high + keys[(group + 1) % 3]
        low = low + keys[(group + 2) % 3] + np.uint32(group + 1)
    return high, low


def _row_width(shards: Sequence[Shard]) -> int:
    """The widest row of threefry for which few numbers of the shards are padding."""
    total = sum(math.prod(shard.shape) for shard in shards)
    for width in (128, 64, 32, 16):
        padded = FlatView(tuple(shards), width)
        if padded.num_rows * width <= (1 + MOST_PADDING) * total:
            return width
    return BLOCK


def normal_from_bits(bits: Arrays, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Maps 64 bits, a high and a low word, to a normal sample: the first bit is the sign.

    With m the integer of the other 63 bits, the tail beyond the result has the probability
    (m + 1/2) / 2**64, so the result lies between 7e-20 and 9.2 in absolute value. Small and large
    results keep their full relative precision, because the quantile is computed from the tail's
    probability and from the probability between -z and z, each rounded once. In float32 the
    relative error is below 5e-7.
    """
    (high, low), dtype = bits, np.dtype(dtype)

    def integer(upper: jax.Array, lower: jax.Array) -> jax.Array:
        """63 bits plus one half."""
        upper = (upper & np.uint32(2**31 - 1)).astype(dtype)
        return upper * dtype.type(2.0**32) + (lower.astype(dtype) + dtype.type(0.5))

    tail = integer(high, low) * dtype.type(2.0**-64)
    within = integer(~high, ~low) * dtype.type(2.0**-63)
    quantile = _quantile_in_float32 if dtype == np.float32 else _library_quantile
    size = quantile(tail, within)
    return jnp.where(high >> np.uint32(31) == np.uint32(1), -size, size)


@jax.jit
def _library_quantile(tail: jax.Array, within: jax.Array) -> jax.Array:
    """Returns z with probability `tail` above it, and `within` = 1 - 2 tail between -z and z.

    The `jit` hides the array constants of `ndtri`, which `update_by_shard` does not accept.
    """
    half = within.dtype.type(0.5)
    # The bounds keep each branch within its domain where the other one is used.
    near = jax.lax.erf_inv(jnp.minimum(within, half)) * within.dtype.type(math.sqrt(2))
    far = -ndtri(jnp.minimum(tail, tail.dtype.type(0.25)))
    return jnp.where(within < half, near, far)


# With w = -log(4 tail (1 - tail)): z / within as a polynomial in w - NEAR_MIDDLE up to SPLIT, and
# z / (within sqrt(w)) as one in 1 / sqrt(w) - FAR_MIDDLE above. Highest power first;
# benchmarks/quantile_fit.py derives them.
SPLIT, NEAR_MIDDLE, FAR_MIDDLE = np.float32(5), np.float32(2.5), np.float32(0.3)
NEAR = np.array(
    [
        -1.24323796e-08,
        3.28558935e-08,
        6.59264162e-07,
        -4.8970037e-06,
        -7.01923059e-06,
        0.000308785666,
        -0.00177164456,
        -0.00590771704,
        0.348802038,
        2.12331348,
    ],
    np.float32,
)
FAR = np.array(
    [
        3943.92422,
        69.875226,
        -381.422211,
        -30.9082665,
        17.4117536,
        3.06388697,
        0.977335166,
        0.23711851,
        -0.262925465,
        1.34393809,
    ],
    np.float32,
)


def _quantile_in_float32(tail: jax.Array, within: jax.Array) -> jax.Array:
    """As `_library_quantile`, with one logarithm and one root: takes half the time on a GPU."""
    w = -jnp.log(np.float32(4) * tail * (np.float32(1) - tail))
    root = jax.lax.rsqrt(jnp.maximum(w, SPLIT))
    far = _polynomial(FAR, root - FAR_MIDDLE) * (w * root)
    return within * jnp.where(w < SPLIT, _polynomial(NEAR, w - NEAR_MIDDLE), far)


def _polynomial(coefficients: np.ndarray, x: jax.Array) -> jax.Array:
    return functools.reduce(lambda total, c: total * x + c, coefficients)
