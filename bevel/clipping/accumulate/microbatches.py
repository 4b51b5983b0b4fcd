"""Runs a batch in microbatches, which need less memory and give the same sum.

The sum is accumulated in float32 or wider.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bevel.sharding.types import on_all_shards, zeros_of_type

# (batch, keys, padding, sums so far or None) -> (sums, rows)
Chunk = Callable[..., tuple[list[Any], list[Any]]]


def in_microbatches(
    chunk: Chunk,
    size: int,
    microbatch_size: int | None,
    batch: Any,
    keys: Any,
    padding: Any,
    sharded: Callable[[list[Any]], list[Any]] = list,
) -> tuple[list[Any], list[Any]]:
    """Applies `chunk(batch, keys, padding, sums) -> (sums, rows)` to microbatches.

    Each chunk adds to the sums of the earlier ones. `sharded` gives the zeros that they begin with,
    and with them all later sums, the shardings of their parameters.

    Of n microbatches, number k holds examples k, k + n, k + 2n, ... Neighbouring rows, which are on
    one device, go to different microbatches, so every microbatch is sharded like the batch. A
    microbatch that is all padding is skipped, so put padding at rows p with p % n close to n.
    """
    if microbatch_size is None or microbatch_size >= size:
        return chunk(batch, keys, padding, None)
    count = size // microbatch_size
    split = jax.tree.map(
        lambda x: jnp.swapaxes(x.reshape(microbatch_size, count, *x.shape[1:]), 0, 1),
        (batch, keys, padding),
    )
    first = jax.tree.map(lambda x: x[0], split)
    sum_types, row_types = jax.eval_shape(chunk, *first, None)

    def skipped(*args: Any) -> tuple[list[Any], list[Any]]:
        return args[-1], jax.tree.map(zeros_of_type, row_types)

    def step(sums: list[Any], microbatch: Any) -> tuple[list[Any], list[Any]]:
        if padding is None:
            sums, rows = chunk(*microbatch, sums)
        else:
            skip = on_all_shards(jnp.all(microbatch[2]))
            sums, rows = jax.lax.cond(skip, skipped, chunk, *microbatch, sums)
        return sums, rows

    sums, rows = jax.lax.scan(step, sharded([zeros_of_type(t) for t in sum_types]), split)
    rows = [jnp.swapaxes(row, 0, 1).reshape(size, *row.shape[2:]) for row in rows]
    return sums, rows
