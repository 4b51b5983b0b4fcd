"""The blocks of ChaCha20 as one Pallas kernel, for GPUs.

XLA computes a word where it is read. A block has sixteen, which are read from an array in which
they lie side by side: it computed the rounds again for each of them, at fourteen times the cost of
threefry, and took a minute to compile. The kernel computes a block once, in registers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

pl: Any
triton: Any
try:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton
except ImportError:
    pl = triton = None

WORDS = 16
COUNTER = 12  # where the number of the block stands, low word first
TILE, WARPS = 256, 4

Rounds = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]


def available() -> bool:
    """Whether the kernel can be compiled here: on one GPU, or one shard of a fully manual mesh."""
    if triton is None or jax.default_backend() != "gpu":
        return False
    mesh = jax.sharding.get_abstract_mesh()
    alone = bool(mesh.axis_names) and set(mesh.manual_axes) == set(mesh.axis_names)
    return jax.device_count() == 1 or alone  # the compiler cannot cut a kernel


def blocks(
    start: jax.Array,
    high: jax.Array,
    low: jax.Array,
    double_round: Rounds,
    count: int,
    interpret: bool = False,
) -> list[jax.Array]:
    """The 16 words of the blocks that start from `start` (16,), their numbers in place of two.

    `high`, `low`: the words of the numbers, arrays of one shape, which the results have too.
    `count` double rounds are taken.
    """
    size = low.size
    tiles = -(-size // TILE)

    def flat(x: jax.Array) -> jax.Array:
        return jnp.pad(x.reshape(-1), (0, tiles * TILE - size))

    def kernel(start_ref: Any, high_ref: Any, low_ref: Any, *out_refs: Any) -> None:
        low, high = low_ref[...], high_ref[...]
        words = [jnp.full(low.shape, start_ref[i], np.uint32) for i in range(WORDS)]
        words[COUNTER], words[COUNTER + 1] = low, high
        state = jax.lax.fori_loop(0, count, lambda _, s: tuple(double_round(s)), tuple(words))
        for ref, before, after in zip(out_refs, words, state, strict=True):
            ref[...] = before + after

    own = pl.BlockSpec((TILE,), lambda i: (i,))
    kind = jax.typeof(low).manual_axis_type
    out = jax.ShapeDtypeStruct((tiles * TILE,), np.uint32, manual_axis_type=kind)
    call = pl.pallas_call(
        kernel,
        grid=(tiles,),
        in_specs=[pl.BlockSpec((WORDS,), lambda i: (0,)), own, own],
        out_specs=[own] * WORDS,
        out_shape=[out] * WORDS,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="chacha20",
    )
    return [x[:size].reshape(low.shape) for x in call(start, flat(high), flat(low))]
