"""The leaves of a gradient: checks, and the draws of a step for all of them."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.noise_addition.pieces import added_in_pieces, drawn_in_pieces, fits_pieces
from bevel.sharding import types
from bevel.sharding.shard_generation import Arrays, Shard, constant, leaf_specs, update_by_shard

PyTree = Any
MOST_OFFSETS = 2**32  # of a leaf whose offsets fit in 32 bits
# Shapes with at least one part in this many of the gradient are noised in place.
MOST_IN_PLACE = 8
LARGE, LARGE_ON_MESHES, LARGE_ELSEWHERE = 2**18, 2**16, 2**20  # elements of such a group
MOST_ELSEWHERE = 2**26  # elements in a group on a GPU, where each group starts a few kernels


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


def leaf_key_data(step_key: jax.Array, leaves: Sequence[int]) -> jax.Array:
    """Returns the key data of some leaves at one step: fold_in(fold_in(key, step), leaf)."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.random.key_data(fold(step_key, constant(np.array(leaves, np.uint32))))


class _Draws(Protocol):
    """Makes the noise of leaves: a function of their key data and of global offsets."""

    in_pieces: ClassVar[bool]
    """Whether large leaves are better drawn in pieces than at once."""

    def __call__(self, key_data: jax.Array, shard: Shard) -> Arrays:
        """Returns the noise of one shard, as the only array of a tuple."""

    def of_leaves(self, key_data: jax.Array, shards: Sequence[Shard]) -> Arrays:
        """Returns the noise of several shards, from one program whatever their shapes."""


def draw_leaves(
    make: Callable[[np.dtype], _Draws],
    key: jax.Array,
    step: jax.Array,
    likes: list[jax.Array],
    specs: Sequence[PartitionSpec | None],
    numbers: Sequence[int] | None = None,
) -> list[jax.Array]:
    """Draws the noise of one step for leaves, with the shapes and shardings of `likes`.

    `numbers` are those of the leaves in the gradient, by default from 0 on.
    """
    return _by_group(make, None, key, step, likes, specs, numbers)


def add_draws(
    make: Callable[[np.dtype], _Draws],
    scale: float,
    key: jax.Array,
    step: jax.Array,
    grads: list[jax.Array],
    specs: Sequence[PartitionSpec | None],
) -> list[jax.Array]:
    """Adds `scale` times what `draw_leaves` returns, in place."""
    return _by_group(make, scale, key, step, grads, specs)


def _by_group(
    make: Callable[[np.dtype], _Draws],
    scale: float | None,
    key: jax.Array,
    step: jax.Array,
    arrays: list[jax.Array],
    specs: Sequence[PartitionSpec | None],
    numbers: Sequence[int] | None = None,
) -> list[jax.Array]:
    numbers = range(len(arrays)) if numbers is None else numbers
    step_words = jax.random.key_data(jax.random.fold_in(key, step))
    found = {leaf: x for leaf, x in enumerate(arrays) if not x.size}
    for leaves, alike in group_leaves(arrays, specs):
        draws = make(arrays[leaves[0]].dtype)
        own = tuple(numbers[leaf] for leaf in leaves)
        update = _Noised(draws, scale, jax.random.key_impl(key), own, alike)
        together = tuple(arrays[leaf] for leaf in leaves)
        results = update_by_shard(update, step_words, together, [specs[leaf] for leaf in leaves])
        found |= dict(zip(leaves, results, strict=True))
    return [found[leaf] for leaf in range(len(arrays))]


@dataclasses.dataclass(frozen=True)
class _Noised:
    """An `Updater` of the leaves of a group: adds `scale` times their noise, or returns it."""

    draws: _Draws
    scale: float | None
    generator: Any  # the implementation of the key
    leaves: tuple[int, ...]
    alike: bool  # all have the same shape and shards

    def __call__(self, step_words: jax.Array, shards: tuple[Shard, ...], arrays: Arrays) -> Arrays:
        step_key = jax.random.wrap_key_data(step_words, impl=self.generator)
        key_data = leaf_key_data(step_key, self.leaves)
        if self.alike and self._fits_pieces(shards[0]):
            return self._in_pieces(key_data, shards[0], arrays)
        if _fit_one_view(shards):
            noises = self.draws.of_leaves(key_data, shards)
        else:
            pairs = zip(key_data, shards, strict=True)
            noises = tuple(noise for one in pairs for noise in self.draws(*one))
        if self.scale is None:
            return noises
        return tuple(x + z * z.dtype.type(self.scale) for x, z in zip(arrays, noises, strict=True))

    def _fits_pieces(self, shard: Shard) -> bool:
        return self.draws.in_pieces and shard.on_one_device and fits_pieces(shard, len(self.leaves))

    def _in_pieces(self, key_data: jax.Array, shard: Shard, arrays: Arrays) -> Arrays:
        if self.scale is None:
            return drawn_in_pieces(self.draws, key_data, shard)
        return added_in_pieces(self.draws, self.scale, key_data, shard, arrays)


def _fit_one_view(shards: Sequence[Shard]) -> bool:
    """Returns whether shards can be drawn in one loop.

    Where the compiler may split a shard further, it would communicate slices of the result.
    """
    return all(s.on_one_device and math.prod(s.full_shape) <= MOST_OFFSETS for s in shards)


class Group(NamedTuple):
    """Leaves that are drawn together. `alike`: they have the same shape, dtype and shards."""

    leaves: list[int]
    alike: bool


def group_leaves(arrays: list[jax.Array], specs: Sequence[PartitionSpec | None]) -> list[Group]:
    """Groups the indices of leaves that are drawn together, by one program.

    The number of groups does not grow with the number of leaves or of their shapes, because each
    group takes up to half a second to compile. A shape with a large part of the gradient forms its
    own group, which is noised in place. The noise of other groups takes memory until it is added.
    Leaves without elements are in no group.
    """
    total = sum(x.size for x in arrays)
    small, most = _group_sizes(total)
    shapes = dict[Any, list[int]]()
    for leaf, (x, spec) in enumerate(zip(arrays, specs, strict=True)):
        if not x.size:
            continue
        # The compiler may shard leaves of one shape differently.
        shape = (x.shape, spec) if types.on_one_device() else leaf
        shapes.setdefault((shape, types.explicit_sharding(x), *_kind(x, spec)), []).append(leaf)
    groups, open_groups = list[Group](), dict[Any, Group]()
    for (*_, dtype, mesh, axes), leaves in shapes.items():
        size = len(leaves) * arrays[leaves[0]].size
        if len(shapes) == 1 or size >= max(total / MOST_IN_PLACE, small):
            groups.append(Group(leaves, True))
            continue
        kind = dtype, mesh, axes
        for leaf in leaves:
            group = open_groups.get(kind)
            if group is None or sum(arrays[i].size for i in (*group.leaves, leaf)) > most:
                group = open_groups[kind] = Group([], False)
                groups.append(group)
            group.leaves.append(leaf)
    return groups


def _group_sizes(total: int) -> tuple[int, int]:
    """The number of elements from which leaves are noised in place, and the most in a group."""
    if jax.default_backend() != "cpu":
        return LARGE_ELSEWHERE, max(total // MOST_IN_PLACE, MOST_ELSEWHERE)
    # On a CPU, groups would be drawn at the same time, so dividing them saves no memory.
    return (LARGE if jax.device_count() == 1 else LARGE_ON_MESHES), total


def _kind(x: jax.Array, spec: PartitionSpec | None) -> Any:
    """What the leaves of a group have in common.

    Noise is typed as varying over all axes over which a leaf of its group is split.
    """
    sharding = types.explicit_sharding(x)
    entries = () if spec is None or not types.manual_axes() else spec.partitions
    if sharding is not None:
        entries = sharding.spec.partitions
    axes = {axis for entry in entries for axis in types.spec_axes(entry)} | types.varying_axes(x)
    return x.dtype, sharding and sharding.mesh, frozenset(axes)
