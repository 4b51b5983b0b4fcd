"""The leaves of a gradient: checks, and the draws of a step for all of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.noise_addition.pieces import AddedInPieces, DrawnInPieces, piece_size
from bevel.sharding import types
from bevel.sharding.shard_generation import (
    Maker,
    generate_by_shard,
    leaf_specs,
    update_by_shard,
)

PyTree = Any


class NoiseLeaf(NamedTuple):
    """A leaf of the gradient: its name for errors, its value, and its spec in a shard_map."""

    name: str
    value: jax.Array
    spec: PartitionSpec | None


def checked_leaves(tree: PyTree, specs: PyTree, kind: Any, remedy: str) -> list[NoiseLeaf]:
    """Returns the leaves of a gradient; raises for wrong dtypes and unknown shard offsets."""
    named = jax.tree_util.tree_flatten_with_path(tree)[0]
    leaves = []
    for (path, value), spec in zip(named, leaf_specs(specs, tree), strict=True):
        name = jax.tree_util.keystr(path) or "the gradient"
        dtype = jnp.result_type(value)
        if not jnp.issubdtype(dtype, kind):
            raise FixArgumentsError(f"{name} has dtype {dtype}: {remedy}")
        leaf = NoiseLeaf(name, jnp.asarray(value), spec)
        if types.manual_axes():
            _check_shard_offset(leaf)
        leaves.append(leaf)
    return leaves


def _check_shard_offset(leaf: NoiseLeaf) -> None:
    """Inside `jax.shard_map`, raises unless the shard's offset in the global array is known."""
    name, value, spec = leaf
    entries = () if spec is None else spec.partitions
    named = {a for entry in entries for a in types.spec_axes(entry)}
    mesh = jax.sharding.get_abstract_mesh()
    if len(entries) > value.ndim or not named <= set(mesh.axis_names):
        raise FixArgumentsError(
            f"{name} has shape {value.shape} and spec {spec} on a mesh with axes "
            f"{mesh.axis_names}: pass at most one entry per dimension, naming axes of the mesh."
        )
    split = named & set(mesh.manual_axes)
    varying = types.varying_axes(value)
    if not types.types_track_varying_axes():
        if spec is None:
            raise FixArgumentsError(
                f"{name} is a shard, and with check_vma=False its offset in the gradient is not "
                "known: pass specs=, the PartitionSpecs of the gradient in this shard_map."
            )
    elif spec is None and varying:
        raise FixArgumentsError(
            f"{name} differs between the shards of {sorted(varying)}, and the offset of a shard "
            "is not known: pass specs=, the PartitionSpecs of the gradient in this shard_map. If "
            "it is a partial sum, reduce it first (reduce_axes= of clipped_grad)."
        )
    elif split != varying:
        raise FixArgumentsError(
            f"{name} differs between the shards of {sorted(varying)}, but its spec {spec} splits "
            f"it over {sorted(split)}. Noise is added once, to the complete sum: reduce the "
            "gradient over the other axes first (reduce_axes= of clipped_grad), or correct specs=."
        )


@jax.custom_batching.custom_vmap
def forbid_vmap(grads: list[jax.Array]) -> list[jax.Array]:
    """Returns `grads` unchanged, but raises under `jax.vmap`."""
    return grads


@forbid_vmap.def_vmap
def _raise_under_vmap(size: int, mapped: Any, grads: list[jax.Array]) -> Any:
    raise FixArgumentsError(
        f"jax.vmap would add the same noise to {size} gradients, and their differences would "
        "reveal the data. Stack them into one gradient, or use jax.lax.map with a separate "
        "prng_key= for each update."
    )


def leaf_key_data(key: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """Returns the key data of all leaves at one step: fold_in(fold_in(key, step), leaf)."""
    step_key = jax.random.fold_in(key, step)
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.random.key_data(fold(step_key, np.arange(count, dtype=np.uint32)))


def draw_leaves(
    make: Callable[[np.dtype], Maker],
    key: jax.Array,
    step: jax.Array,
    likes: list[jax.Array],
    specs: Sequence[PartitionSpec | None],
    one_by_one: bool = False,
) -> list[jax.Array]:
    """Draws the noise of one step for all leaves, with the shapes and shardings of `likes`.

    Leaves of the same kind are drawn together where that needs no communication, because a program
    for each would take a GPU longer to compile than the model. Their noise then occupies memory
    until it is added. Use `one_by_one` for generators (`make`) that contain a loop.
    """
    key_data = leaf_key_data(key, step, len(likes))
    noise = dict[int, jax.Array]()
    for leaves in group_leaves(likes, specs, one_by_one):
        like, spec = likes[leaves[0]], specs[leaves[0]]
        maker = make(like.dtype)
        if not one_by_one:
            maker = DrawnInPieces(maker, len(leaves))
        draw = functools.partial(generate_by_shard, maker, like=like, spec=spec)
        if len(leaves) == 1:
            (noise[leaves[0]],) = draw(key_data[leaves[0]])
            continue
        # Without the barrier XLA would again draw the noise of each leaf in a separate program.
        (rows,) = jax.lax.optimization_barrier(jax.vmap(draw)(key_data[np.array(leaves)]))
        noise |= {leaf: rows[row] for row, leaf in enumerate(leaves)}
    return [noise[leaf] for leaf in range(len(likes))]


def add_draws(
    make: Callable[[np.dtype], Maker],
    scale: float,
    key: jax.Array,
    step: jax.Array,
    grads: list[jax.Array],
    specs: Sequence[PartitionSpec | None],
) -> list[jax.Array]:
    """Adds `scale` times what `draw_leaves` returns, in place and in pieces."""
    key_data = leaf_key_data(key, step, len(grads))
    noised = dict[int, jax.Array]()
    for leaves in group_leaves(grads, specs):
        add = AddedInPieces(make(grads[leaves[0]].dtype), scale)
        together = tuple(grads[leaf] for leaf in leaves)
        sums = update_by_shard(add, key_data[np.array(leaves)], together, specs[leaves[0]])
        noised |= dict(zip(leaves, sums, strict=True))
    return [noised[leaf] for leaf in range(len(grads))]


def group_leaves(
    likes: list[jax.Array], specs: Sequence[PartitionSpec | None], one_by_one: bool = False
) -> list[list[int]]:
    """Groups the indices of leaves of one shape, dtype and sharding, if no mesh may split them.

    A group is added to as a whole, so all its leaves have to be in memory at once. Groups of more
    than a quarter of the gradient are therefore divided, which gives at most four more of them.
    """
    separate = one_by_one or not types.on_one_device()
    kinds = dict[Any, list[int]]()
    for leaf, (like, spec) in enumerate(zip(likes, specs, strict=True)):
        kind = like.shape, like.dtype, spec, types.explicit_sharding(like)
        kinds.setdefault(leaf if separate else kind, []).append(leaf)
    total = sum(like.size for like in likes)
    largest = max(total // 4, piece_size(total))
    groups = []
    for leaves in kinds.values():
        count = min(-(-len(leaves) * likes[leaves[0]].size // largest), len(leaves)) or 1
        groups += [part.tolist() for part in np.array_split(leaves, count)]
    return groups
