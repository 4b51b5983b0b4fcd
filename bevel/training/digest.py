"""A checksum of a tree of arrays, computed where they lie: the same on every mesh.

Each 32-bit word is mixed with its place in the leaf, and the mixtures are added modulo 2**32, twice
with different constants. Sums of integers do not depend on their order, so neither mesh nor number
of processes matters, and only a few numbers leave the devices. It finds accidents (a flipped bit,
a lost or exchanged part), not forgeries.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
# Odd numbers without structure: the golden ratio, and the finalizers of MurmurHash3.
GOLDEN, FIRST, SECOND = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
SEEDS = (0x243F6A88, 0xB7E15162)


def digest(tree: PyTree) -> list[str]:
    """The checksums of a tree's leaves, as 16 hexadecimal digits each."""
    sums = np.asarray(_checksums(jax.tree.leaves(tree)))
    return [f"{int(a):08x}{int(b):08x}" for a, b in sums]


@jax.jit
def _checksums(leaves: list[jax.Array]) -> jax.Array:
    if not leaves:
        return jnp.zeros((0, len(SEEDS)), jnp.uint32)
    return jnp.stack([checksum(leaf) for leaf in leaves])


def checksum(leaf: jax.Array) -> jax.Array:
    words = _as_words(leaf)
    places = _flat_places(words.shape)
    mixed = [_mix(words ^ _mix(places + np.uint32(seed))) for seed in SEEDS]
    return jnp.stack([jnp.sum(x, dtype=jnp.uint32) for x in mixed])


def _as_words(leaf: jax.Array) -> jax.Array:
    """The bits of an array as unsigned words, one or more for each element."""
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


def _flat_places(shape: tuple[int, ...]) -> jax.Array:
    """The place of each element in the flat array, modulo 2**32."""
    strides = [math.prod(shape[axis + 1 :]) % 2**32 for axis in range(len(shape))]
    places = (
        jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(stride)
        for axis, stride in enumerate(strides)
    )
    return functools.reduce(jnp.add, places, jnp.zeros(shape, jnp.uint32))


def _mix(x: jax.Array) -> jax.Array:
    """A permutation of 32-bit words in which every bit depends on every other."""
    x = x * np.uint32(GOLDEN)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(FIRST)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(SECOND)
    return x ^ (x >> np.uint32(16))
