"""The blocks of ChaCha20 as one Pallas kernel, for GPUs.

XLA computes a word where it is read. A block has sixteen, which are read from an array in which
they lie side by side: it computed the rounds again for each of them, at fourteen times the cost of
threefry, and took a minute to compile. The kernel computes a block once, in registers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.lazy import LazyModule
from bevel.sharding.types import on_one_device

# Imported when a kernel is first traced: that takes half a second.
pl: Any = LazyModule("jax.experimental.pallas")
triton: Any = LazyModule("jax.experimental.pallas.triton")

WORDS = 16
COUNTER = 12  # where the number of the block stands, low word first
TILE, WARPS = 256, 4

Rounds = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]


def available() -> bool:
    """Whether the kernel can be compiled here: on one GPU, or one shard of a fully manual mesh."""
    return jax.default_backend() == "gpu" and on_one_device() and bool(triton)


@functools.partial(jax.jit, static_argnames=("double_round", "count", "interpret"))
def blocks(
    start: jax.Array,
    high: jax.Array,
    low: jax.Array,
    double_round: Rounds,
    count: int,
    interpret: bool = False,
) -> jax.Array:
    """The blocks that start from `start` (16,), their numbers in place of two of its words.

    `high`, `low`: the words of the numbers, arrays of one shape. The result has a first axis more,
    of the 16 words: threads that lie side by side write side by side.
    `count` double rounds are taken. Under `jit`, so that leaves of one size share the kernel.
    """
    size = low.size
    tiles = -(-size // TILE)

    def kernel(start_ref: Any, high_ref: Any, low_ref: Any, out_ref: Any) -> None:
        first = pl.program_id(0) * TILE
        here = pl.ds(first, TILE)
        inside = first + jax.lax.iota(np.int32, TILE) < size
        high, low = (
            triton.load(ref.at[here], mask=inside, other=np.uint32(0))
            for ref in (high_ref, low_ref)
        )
        words = [jnp.full((TILE,), start_ref[i], np.uint32) for i in range(WORDS)]
        words[COUNTER], words[COUNTER + 1] = low, high
        state = jax.lax.fori_loop(0, count, lambda _, s: tuple(double_round(s)), tuple(words))
        for i, (before, after) in enumerate(zip(words, state, strict=True)):
            triton.store(out_ref.at[np.int32(i), here], before + after, mask=inside)

    everything = pl.BlockSpec((size,), lambda i: (0,))
    kind = jax.typeof(low).manual_axis_type
    out = jax.ShapeDtypeStruct((WORDS, size), np.uint32, manual_axis_type=kind)
    call = pl.pallas_call(
        kernel,
        grid=(tiles,),
        in_specs=[pl.BlockSpec((WORDS,), lambda i: (0,)), everything, everything],
        out_specs=pl.BlockSpec((WORDS, size), lambda i: (0, 0)),
        out_shape=out,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="chacha20",
    )
    return call(start, high.reshape(-1), low.reshape(-1)).reshape(WORDS, *low.shape)
