"""The offset of an element in its leaf, in row-major order: 64 bits, as two words of 32.

JAX has no 64-bit integers by default, and a leaf may have more than 2**32 elements. One dimension
may not: positions along it would come round, and two elements would get the same noise.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.sharding.shard_generation import Shard

Wide = tuple[jax.Array, jax.Array]
"""A number of 64 bits: (high word, low word)."""


def flat_offsets(piece: Shard, lead: int | None = None) -> Wide:
    """Offsets in the whole array of the elements of a piece.

    With `lead`, only the first `lead` dimensions are followed: the result has their shape, and
    holds the offset of the first element behind each.
    """
    if max(piece.whole, default=0) >= 2**32:
        raise FixArgumentsError(
            f"an array of shape {piece.whole} has 2**32 elements or more along one dimension, too "
            "many to be told apart: reshape it to more dimensions. SupportedStrategies.ZERO lays "
            "leaves out flat: use DEFAULT for one of this size."
        )
    lead = len(piece.shape) if lead is None else lead
    shape = piece.shape[:lead]
    small = math.prod(piece.whole) <= 2**32
    high = low = jnp.zeros(shape, np.uint32)
    for d, (size, start) in enumerate(zip(piece.whole, piece.starts, strict=True)):
        position = jnp.broadcast_to(start, shape)
        if d < lead:
            position = position + jax.lax.broadcasted_iota(np.uint32, shape, d)
        if small:
            low = low * np.uint32(size % 2**32) + position
        else:
            high, low = plus(times((high, low), size), position)
    return high, low


def times(x: Wide, factor: int) -> Wide:
    """x * factor modulo 2**64, for a factor below 2**32: products of half words, with carries."""
    high, low = x
    top, bottom = np.uint32(factor >> 16), np.uint32(factor & 0xFFFF)
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    first = (low & mask) * bottom
    second = (low >> half) * bottom + (first >> half)
    third = (low & mask) * top + (second & mask)
    carried = (low >> half) * top + (second >> half) + (third >> half)
    return high * np.uint32(factor) + carried, (third << half) | (first & mask)


def plus(x: Wide, term: jax.Array) -> Wide:
    """x + term modulo 2**64, for a term of 32 bits."""
    high, low = x
    total = low + term
    return high + (total < low).astype(np.uint32), total


def shifted(x: Wide, bits: int) -> Wide:
    """x >> bits, for 1 to 31 bits."""
    high, low = x
    down, up = np.uint32(bits), np.uint32(32 - bits)
    return high >> down, (low >> down) | (high << up)
