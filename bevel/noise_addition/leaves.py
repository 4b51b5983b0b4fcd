"""The leaves of a gradient, where they lie, and the draws of a step for each of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.sharding import types
from bevel.sharding.shard_generation import Maker, generate_by_shard, leaf_specs

PyTree = Any


class NoiseLeaf(NamedTuple):
    """A leaf of the gradient: its name for errors, its value, and how a shard_map splits it."""

    name: str
    value: jax.Array
    spec: PartitionSpec | None


def checked_leaves(tree: PyTree, specs: PyTree, kind: Any, remedy: str) -> list[NoiseLeaf]:
    """The leaves of a gradient, each of a dtype of `kind`, and placed as far as can be told."""
    named = jax.tree_util.tree_flatten_with_path(tree)[0]
    leaves = []
    for (path, value), spec in zip(named, leaf_specs(specs, tree), strict=True):
        name = jax.tree_util.keystr(path) or "the gradient"
        dtype = jnp.result_type(value)
        if not jnp.issubdtype(dtype, kind):
            raise FixArgumentsError(f"{name} has dtype {dtype}: {remedy}")
        leaf = NoiseLeaf(name, jnp.asarray(value), spec)
        if types.manual_axes():
            _check_place_of_shard(leaf)
        leaves.append(leaf)
    return leaves


def _check_place_of_shard(leaf: NoiseLeaf) -> None:
    """Inside `jax.shard_map`, raises unless the leaf's place in the whole array is known."""
    name, value, spec = leaf
    entries = () if spec is None else spec.partitions
    named = {a for entry in entries for a in types.spec_axes(entry)}
    mesh = jax.sharding.get_abstract_mesh()
    if len(entries) > value.ndim or not named <= set(mesh.axis_names):
        raise FixArgumentsError(
            f"{name} has shape {value.shape} on a mesh with axes {mesh.axis_names}, and its spec "
            f"is {spec}: name at most one entry per dimension, and axes of the mesh."
        )
    split = named & set(mesh.manual_axes)
    varying = types.varying_axes(value)
    if not types.types_track_varying_axes():
        if spec is None:
            raise FixArgumentsError(
                f"{name} is a shard, and with check_vma=False nothing says of what: pass "
                "specs=, the PartitionSpecs that split the gradient in this shard_map."
            )
    elif spec is None and varying:
        raise FixArgumentsError(
            f"{name} differs between the shards of {sorted(varying)}, and a shard cannot know "
            "where it lies in the whole: pass specs=, the PartitionSpecs that split the gradient "
            "in this shard_map. If it is a sum that is still to be reduced, reduce it first "
            "(reduce_axes= of clipped_grad)."
        )
    elif split != varying:
        raise FixArgumentsError(
            f"{name} differs between the shards of {sorted(varying)}, but its spec {spec} splits "
            f"it over {sorted(split)}. Noise belongs on the whole sum, once: reduce the gradient "
            "over the other axes first (reduce_axes= of clipped_grad), or correct specs=."
        )


@jax.custom_batching.custom_vmap
def not_mapped(grads: list[jax.Array]) -> list[jax.Array]:
    """Gradients as they are; `jax.vmap` over them is refused."""
    return grads


@not_mapped.def_vmap
def _refuse_the_same_noise(size: int, mapped: Any, grads: list[jax.Array]) -> Any:
    raise FixArgumentsError(
        f"jax.vmap would add the same noise to {size} gradients, and who subtracts two of them has "
        "the data. Stack them to one gradient, or call update for one after the other, each "
        "with its own prng_key= (jax.lax.map)."
    )


def leaf_words(key: jax.Array, step: jax.Array, count: int) -> jax.Array:
    """The words of the keys of all leaves at one step: fold_in(fold_in(key, step), leaf)."""
    of_step = jax.random.fold_in(key, step)
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.random.key_data(fold(of_step, np.arange(count, dtype=np.uint32)))


def drawn(
    make: Callable[[np.dtype], Maker],
    key: jax.Array,
    step: jax.Array,
    likes: list[jax.Array],
    specs: Sequence[PartitionSpec | None],
    one_by_one: bool = False,
) -> list[jax.Array]:
    """What `make`, for their dtypes, draws at one step for all leaves, where `likes` lie.

    Leaves that are alike are drawn together where nothing has to be moved for it: a program for
    each would take a GPU longer to compile than the model. Their noise then takes memory until it
    is added. `one_by_one`: never, for draws with a loop of their own.
    """
    words = leaf_words(key, step, len(likes))
    noise = dict[int, jax.Array]()
    for leaves in alike(likes, specs, one_by_one):
        like, spec = likes[leaves[0]], specs[leaves[0]]
        draw = functools.partial(generate_by_shard, make(like.dtype), like=like, spec=spec)
        if len(leaves) == 1:
            (noise[leaves[0]],) = draw(words[leaves[0]])
            continue
        # Without the barrier each leaf's part would be drawn in a program of its own again.
        (rows,) = jax.lax.optimization_barrier(jax.vmap(draw)(words[np.array(leaves)]))
        noise |= {leaf: rows[row] for row, leaf in enumerate(leaves)}
    return [noise[leaf] for leaf in range(len(likes))]


def alike(
    likes: list[jax.Array], specs: Sequence[PartitionSpec | None], one_by_one: bool = False
) -> list[list[int]]:
    """Lists of leaves of one shape, dtype and place. What a mesh may cut is drawn by itself."""
    apart = one_by_one or not types.on_one_device()
    lists = dict[Any, list[int]]()
    for leaf, (like, spec) in enumerate(zip(likes, specs, strict=True)):
        place = like.shape, like.dtype, spec, types.explicit_sharding(like)
        lists.setdefault(leaf if apart else place, []).append(leaf)
    return list(lists.values())
