"""Checksums of a tree of arrays, computed on their devices. They are the same on every mesh.

Each 32-bit word is mixed with its position in the leaf, and the results are added modulo 2**32,
twice with different constants. Integer sums do not depend on their order, so the mesh and the
number of processes do not matter, and only a few numbers leave the devices. Words and positions are
computed as they are added, so no array of the size of a leaf is formed. The checksums detect
accidents (a flipped bit, lost or swapped parts), not forgeries.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
# Odd multipliers: the golden ratio, and the finalizer constants of MurmurHash3.
GOLDEN, FIRST, SECOND = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
SEEDS = (0x243F6A88, 0xB7E15162)


def digest(tree: PyTree) -> list[str]:
    """Returns the checksum of each leaf, as 16 hexadecimal digits."""
    sums = np.asarray(checksums_of(jax.tree.leaves(tree)))
    return [f"{int(a):08x}{int(b):08x}" for a, b in sums]


@jax.jit
def checksums_of(leaves: list[jax.Array]) -> jax.Array:
    if not leaves:
        return jnp.zeros((0, len(SEEDS)), jnp.uint32)
    return jnp.stack([checksum(leaf) for leaf in leaves])


def checksum(leaf: jax.Array) -> jax.Array:
    """Returns the checksum of an array as two 32-bit words."""
    words = _as_words(leaf)
    positions = _flat_positions(words.shape)
    mixed = tuple(_mix(words ^ _mix(positions + np.uint32(seed))) for seed in SEEDS)
    # One reduction of both: on a CPU, those that share an operand first write it to memory.
    zeros = (np.uint32(0),) * len(SEEDS)
    return jnp.stack(jax.lax.reduce(mixed, zeros, _added, tuple(range(words.ndim))))


def _added(a: tuple[jax.Array, ...], b: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _as_words(leaf: jax.Array) -> jax.Array:
    """Returns the bits of an array as uint32 words, one or more per element."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag], axis=-1)
    width = leaf.dtype.itemsize
    if width >= 4:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}[width]
    return jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)


def _flat_positions(shape: tuple[int, ...]) -> jax.Array:
    """Returns the position of each element in the flattened array, modulo 2**32."""
    strides = [math.prod(shape[axis + 1 :]) % 2**32 for axis in range(len(shape))]
    positions = (
        jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride)
        for axis, stride in enumerate(strides)
    )
    return functools.reduce(jnp.add, positions, jnp.zeros(shape, jnp.uint32))


def _mix(x: jax.Array) -> jax.Array:
    """Permutes 32-bit words so that every output bit depends on every input bit."""
    x = x * np.uint32(GOLDEN)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(FIRST)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(SECOND)
    return x ^ (x >> np.uint32(16))
