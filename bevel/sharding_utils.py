"""Sharding functions under the names of JAX Privacy. bevel does not need them itself.

`SupportedStrategies.ZERO` of a privatizer does what the first two are for.
"""

import concurrent.futures
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bevel.batch_selection.padding import filling_order
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError
from bevel.noise_addition.noise_layout import unflatten
from bevel.sharding.sharding_like import with_sharding_like

__all__ = [
    "compute_early_stopping_order",
    "flatten_with_zero_redundancy",
    "local_reshape_add",
    "parallel_sample_pytree",
]

PyTree = Any


def flatten_with_zero_redundancy(
    abstract_array: jax.ShapeDtypeStruct | jax.Array,
) -> jax.ShapeDtypeStruct:
    """The type of the array when it is flat, padded, and split over all axes of its mesh.

    The size is the next multiple of the number of devices. Without a mesh it is flat only.
    """
    size, sharding = math.prod(abstract_array.shape), abstract_array.sharding
    if not isinstance(sharding, NamedSharding):
        return jax.ShapeDtypeStruct((size,), abstract_array.dtype)
    mesh = sharding.mesh
    padded = -(-size // mesh.size) * mesh.size
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.ShapeDtypeStruct((padded,), abstract_array.dtype, sharding=split)


def local_reshape_add(x: jax.Array, y: jax.Array) -> jax.Array:
    """Adds the first elements of a flat `y` to `x`, which keeps its shape and sharding.

    Elements are added in row-major order on every mesh, which costs one all-gather of `y`.
    """
    if y.ndim != 1 or y.size < x.size:
        raise FixArgumentsError(
            f"y has shape {y.shape}: pass a flat array of at least {x.size} elements for x of "
            f"shape {x.shape}."
        )
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.promote_types(x.dtype, y.dtype)
    total = x.astype(dtype) + unflatten(y.astype(dtype), x)
    if isinstance(x, jax.core.Tracer):
        return with_sharding_like(total, x)
    return jax.device_put(total, x.sharding)


def compute_early_stopping_order(batch_size: int, microbatch_size: int | None) -> np.ndarray:
    """The order of a batch in which padding at its end falls into the last microbatches.

    `batch[order]` has it. `clipped_grad(..., microbatch_size=...)` takes examples k, k + n, k + 2n,
    ... into microbatch k of n, and skips microbatches that are all padding. None keeps the order.
    """
    size = whole_number("batch_size", batch_size, 0, 2**24, "The order has a number for each row.")
    if microbatch_size is None:
        return np.arange(size)
    return np.argsort(filling_order(size, microbatch_size))


def parallel_sample_pytree(
    rng: np.random.Generator,
    struct: PyTree,
    sampler: Callable[..., np.ndarray] = np.random.Generator.standard_normal,
) -> PyTree:
    """Draws a tree of arrays by NumPy, each shard by itself, in parallel threads.

    Each shard gets a child of `rng`, and replicas of a shard are equal. The numbers depend on how
    the arrays are split. Noise from a NumPy generator can be predicted from its outputs; for noise
    that must withstand an adversary, use `bevel.noise_addition`.

    Args:
      rng: the generator. In a multi-process run, it must be in the same state on all processes.
      struct: arrays or `jax.ShapeDtypeStruct`s, with or without sharding.
      sampler: called as `sampler(generator, size=shape)`.
    """
    if not isinstance(rng, np.random.Generator):
        raise FixArgumentsError(f"rng is a {type(rng).__name__}: pass np.random.default_rng(...).")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        return jax.tree.map(lambda leaf: _sampled(rng, leaf, sampler, threads), struct)


def _sampled(
    rng: np.random.Generator,
    leaf: Any,
    sampler: Callable[..., np.ndarray],
    threads: concurrent.futures.Executor,
) -> jax.Array:
    def drawn(child: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray(sampler(child, size=shape)).astype(leaf.dtype)

    if getattr(leaf, "sharding", None) is None:
        return jnp.asarray(drawn(rng.spawn(1)[0], leaf.shape))
    # The same children for the same shards on all processes.
    everywhere = leaf.sharding.devices_indices_map(leaf.shape).values()
    shards = sorted({_bounds(index, leaf.shape) for index in everywhere})
    children = dict(zip(shards, rng.spawn(len(shards)), strict=True))
    here = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    futures = {
        bounds: threads.submit(drawn, children[bounds], tuple(b - a for a, b in bounds))
        for bounds in {_bounds(index, leaf.shape) for index in here}
    }
    return jax.make_array_from_callback(
        leaf.shape, leaf.sharding, lambda index: futures[_bounds(index, leaf.shape)].result()
    )


def _bounds(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The first and last position of a shard in each dimension."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
