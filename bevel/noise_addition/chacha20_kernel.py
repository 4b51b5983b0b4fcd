"""ChaCha20 blocks as one Pallas kernel, for GPUs.

XLA would compute all rounds again for each of the sixteen words of a block, at fourteen times the
cost of threefry, and take a minute to compile. The kernel computes a block once, in registers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.lazy import LazyModule
from bevel.sharding.types import on_one_device

# Imported when a kernel is first traced, because it takes half a second.
pl: Any = LazyModule("jax.experimental.pallas")
triton: Any = LazyModule("jax.experimental.pallas.triton")

WORDS = 16
KEY, KEY_WORDS = 4, 8  # index of the first word of the key, and their number
COUNTER = 12  # index of the block number, low word first
TILE, WARPS = 256, 4

Rounds = Callable[[Sequence[jax.Array]], Sequence[jax.Array]]


def available() -> bool:
    """Returns whether the kernel can be used: on one GPU, or in a shard of a fully manual mesh."""
    return jax.default_backend() == "gpu" and on_one_device() and bool(triton)


@functools.partial(jax.jit, static_argnames=("double_round", "count", "interpret"))
def blocks(
    start: jax.Array,
    high: jax.Array,
    low: jax.Array,
    double_round: Rounds,
    count: int,
    interpret: bool = False,
    keys: jax.Array | None = None,
) -> jax.Array:
    """Returns blocks after `count` double rounds, of shape (16, *low.shape).

    `start` has the 16 words of a block, whose number is replaced by `high` and `low`, and whose key
    by that of the block in `keys`, of shape (8, *low.shape), if they are given. In the result
    the words come first, so that neighbouring threads write neighbouring addresses. The `jit` lets
    leaves of one size share the kernel.
    """
    size = low.size
    tiles = -(-size // TILE)

    def kernel(start_ref: Any, high_ref: Any, low_ref: Any, *refs: Any) -> None:
        *key_refs, out_ref = refs
        first = pl.program_id(0) * TILE
        tile = pl.ds(first, TILE)
        in_bounds = first + jax.lax.iota(np.int32, TILE) < size
        high, low = (
            triton.load(ref.at[tile], mask=in_bounds, other=np.uint32(0))
            for ref in (high_ref, low_ref)
        )
        words = [jnp.full((TILE,), start_ref[i], np.uint32) for i in range(WORDS)]
        words[COUNTER], words[COUNTER + 1] = low, high
        for key_ref in key_refs:
            for i in range(KEY_WORDS):
                ref = key_ref.at[np.int32(i), tile]
                words[KEY + i] = triton.load(ref, mask=in_bounds, other=np.uint32(0))
        state = jax.lax.fori_loop(0, count, lambda _, s: tuple(double_round(s)), tuple(words))
        for i, (before, after) in enumerate(zip(words, state, strict=True)):
            triton.store(out_ref.at[np.int32(i), tile], before + after, mask=in_bounds)

    all_numbers = pl.BlockSpec((size,), lambda i: (0,))
    axis_type = jax.typeof(low).manual_axis_type
    out = jax.ShapeDtypeStruct((WORDS, size), np.uint32, manual_axis_type=axis_type)
    all_keys = pl.BlockSpec((KEY_WORDS, size), lambda i: (0, 0))
    own_keys = [] if keys is None else [keys.reshape(KEY_WORDS, -1)]
    call = pl.pallas_call(
        kernel,
        grid=(tiles,),
        in_specs=[
            pl.BlockSpec((WORDS,), lambda i: (0,)),
            all_numbers,
            all_numbers,
            *[all_keys] * len(own_keys),
        ],
        out_specs=pl.BlockSpec((WORDS, size), lambda i: (0, 0)),
        out_shape=out,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="chacha20",
    )
    return call(start, high.reshape(-1), low.reshape(-1), *own_keys).reshape(WORDS, *low.shape)
