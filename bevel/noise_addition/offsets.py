"""Row-major offsets of elements in their leaf: 64-bit integers, as two 32-bit words.

JAX has no 64-bit integers by default, and a leaf may have more than 2**32 elements. A single
dimension may not: its 32-bit positions would wrap, and two elements would get the same noise.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.sharding.shard_generation import Shard

WordPair = tuple[jax.Array, jax.Array]
"""A 64-bit integer: (high word, low word)."""


def flat_offsets(shard: Shard, lead: int | None = None) -> WordPair:
    """Returns the offsets, in the global array, of the elements of a shard.

    With `lead`, the result has the shape of the first `lead` dimensions, and holds the offset of
    the first element at each of their positions.
    """
    if max(shard.full_shape, default=0) >= 2**32:
        raise FixArgumentsError(
            f"an array of shape {shard.full_shape} has 2**32 elements or more along one dimension, "
            "so some would get the same noise. Reshape it to more dimensions. "
            "SupportedStrategies.ZERO flattens leaves: use DEFAULT for a leaf of this size."
        )
    lead = len(shard.shape) if lead is None else lead
    shape = shard.shape[:lead]
    small = math.prod(shard.full_shape) <= 2**32
    high = low = jnp.zeros(shape, np.uint32)
    for d, (size, start) in enumerate(zip(shard.full_shape, shard.starts, strict=True)):
        position = jnp.broadcast_to(start, shape)
        if d < lead:
            position = position + jax.lax.broadcasted_iota(np.uint32, shape, d)
        if small:
            low = low * np.uint32(size % 2**32) + position
        else:
            high, low = plus(times((high, low), size), position)
    return high, low


def times(x: WordPair, factor: int) -> WordPair:
    """x * factor modulo 2**64, for a factor below 2**32: products of half words with carries."""
    high, low = x
    top, bottom = np.uint32(factor >> 16), np.uint32(factor & 0xFFFF)
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    first = (low & mask) * bottom
    second = (low >> half) * bottom + (first >> half)
    third = (low & mask) * top + (second & mask)
    carry = (low >> half) * top + (second >> half) + (third >> half)
    return high * np.uint32(factor) + carry, (third << half) | (first & mask)


def plus(x: WordPair, term: jax.Array) -> WordPair:
    """x + term modulo 2**64, for a 32-bit term."""
    high, low = x
    total = low + term
    return high + (total < low).astype(np.uint32), total


def shifted(x: WordPair, bits: int) -> WordPair:
    """x >> bits, for a shift of 1 to 31 bits."""
    high, low = x
    down, up = np.uint32(bits), np.uint32(32 - bits)
    return high >> down, (low >> down) | (high << up)
