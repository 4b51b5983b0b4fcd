"""Generate or update a sharded array shard by shard, on every kind of mesh.

Each element is a function of its position in the full array, so the result does not depend on the
mesh. A shard needs only its own position, so there is no communication.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import PartitionSpec

from bevel.checks import in_one_line
from bevel.errors import FixArgumentsError
from bevel.sharding import types

Start = jax.Array | np.uint32


class Shard(NamedTuple):
    """One shard of an array, or all of it. Each start is a multiple of the size of the shard."""

    shape: tuple[int, ...]
    full_shape: tuple[int, ...]
    starts: tuple[Start, ...]
    on_one_device: bool = True  # False if the compiler may split the shard over more devices

    @classmethod
    def all_of(cls, shape: tuple[int, ...]) -> "Shard":
        return cls(shape, shape, (np.uint32(0),) * len(shape))


Arrays = tuple[jax.Array, ...]
Maker = Callable[[jax.Array, Shard], Arrays]
Updater = Callable[[jax.Array, Shard, Arrays], Arrays]


def generate_by_shard(
    make: Maker, words: jax.Array, like: jax.Array, spec: PartitionSpec | None = None
) -> Arrays:
    """Calls `make(words, shard)` for every shard of `like`, and returns the sharded results.

    Args:
      make: returns one shard of each result, of shape `shard.shape`. It must be hashable, so that
        programs are traced once, and must not close over arrays.
      words: key data or another array that is the same on all devices.
      like: an array with the shape and sharding of the results, or its shard inside
        `jax.shard_map`.
      spec: how the full array is split over the manual axes of an enclosing `jax.shard_map`, which
        a shard does not know. Not needed if its type says that all shards are equal.

    On Auto axes the compiler chooses the shards, even under `jit`. On Explicit axes they follow
    from the type of `like`.
    """
    return update_by_shard(_Generate(make), words, (like,), spec)


@dataclasses.dataclass(frozen=True)
class _Generate:
    """An `Updater` that only reads the shapes of its arrays."""

    make: Maker

    def __call__(self, words: jax.Array, shard: Shard, arrays: Arrays) -> Arrays:
        return self.make(words, shard)


def update_by_shard(
    update: Updater, words: jax.Array, arrays: Arrays, spec: PartitionSpec | None = None
) -> Arrays:
    """Calls `update(words, shard, arrays)` for every shard, and returns the sharded results.

    `arrays` are one or more arrays of one shape and sharding, and `update` gets their shards. On
    Auto axes it must be a single array. Otherwise as `generate_by_shard`.
    """
    axes = types.manual_axes()
    sharding = types.explicit_sharding(arrays[0])
    if sharding is None:
        return _update_without_explicit_axes(update, words, arrays, spec)
    if axes:
        raise FixArgumentsError(
            f"an array is split over manual axes {axes} and over Explicit axes "
            f"({sharding.spec}) at once: run the enclosing shard_map over all of its axes."
        )
    return jax.shard_map(
        functools.partial(_update_without_explicit_axes, update, spec=sharding.spec),
        mesh=sharding.mesh,
        in_specs=(PartitionSpec(), sharding.spec),
        out_specs=sharding.spec,
        axis_names=set(types.explicit_axes(sharding.mesh)),
    )(words, arrays)


def _update_without_explicit_axes(
    update: Updater, words: jax.Array, arrays: Arrays, spec: PartitionSpec | None
) -> Arrays:
    """`update_by_shard` where the arrays are not sharded over Explicit axes."""
    like = arrays[0]
    if types.manual_axes():
        # The compiler partitions over the axes that are not manual as it likes: inside a
        # shard_map, JAX cannot always pass on a custom partitioning rule.
        return update(words, _manual_shard(like, spec), arrays)
    if not like.shape or len(jax.devices()) == 1:
        return update(words, Shard.all_of(like.shape), arrays)
    (like,) = arrays
    # Scalars, because a vector could be sharded.
    scalars = tuple(words[i] for i in np.ndindex(words.shape))
    positions = [jax.lax.broadcasted_iota(np.uint32, like.shape, d) for d in range(like.ndim)]
    return _update_partitioned(_Reshaped(update, words.shape), scalars, (like, *positions))


@dataclasses.dataclass(frozen=True)
class _Reshaped:
    """An `Updater` of words that are passed as scalars."""

    update: Updater
    words_shape: tuple[int, ...]

    def __call__(self, scalars: Arrays, shard: Shard, like: jax.Array) -> Arrays:
        return self.update(jnp.stack(scalars).reshape(self.words_shape), shard, (like,))


def _manual_shard(like: jax.Array, spec: PartitionSpec | None) -> Shard:
    """The position of this shard in the full array, which `spec` splits over manual axes."""
    sizes = jax.sharding.get_abstract_mesh().shape
    full_shape = list(like.shape)
    starts: list[Start] = [np.uint32(0) for _ in like.shape]
    for d, entry in enumerate(spec.partitions if spec is not None else ()):
        names = [a for a in types.spec_axes(entry) if a in types.manual_axes()]
        if names:
            index = jax.lax.axis_index(tuple(names)).astype(np.uint32)
            starts[d] = index * np.uint32(like.shape[d])
            full_shape[d] *= math.prod(sizes[a] for a in names)
    return Shard(like.shape, tuple(full_shape), tuple(starts), types.on_one_device())


# On Auto axes only the compiler knows the shards. The positions of all elements along each
# dimension are passed as operands with the sharding of the result, so the first position in a
# shard is its start. This works for any sharding and does not need the names of mesh axes. The
# compiler removes positions that are not read.


@functools.partial(custom_partitioning, static_argnums=(0,))
def _update_partitioned(update: _Reshaped, words: Arrays, arrays: Arrays) -> Arrays:
    return update(words, Shard.all_of(arrays[0].shape), arrays[0])


def _partition(update: _Reshaped, mesh: Any, operands: Any, results: Any) -> Any:
    words, arrays = operands
    full_shape, sharding = results[0].shape, results[0].sharding
    needs_x64 = any(result.dtype.itemsize == 8 for result in results)

    def lower(words: Arrays, arrays: Arrays) -> Arrays:
        like, *positions = arrays
        # The compiler may call this in a thread of its own, where a `with jax.enable_x64(True)`
        # around the program has no effect (JAX 0.10.2).
        with jax.enable_x64(needs_x64 or jax.config.jax_enable_x64):
            starts = tuple(p[(0,) * like.ndim] for p in positions)
            return update(words, Shard(like.shape, full_shape, starts), like)

    operand_shardings = tuple(w.sharding for w in words), (sharding,) * len(arrays)
    return mesh, lower, (sharding,) * len(results), operand_shardings


def _sharding_as_like(update: _Reshaped, mesh: Any, operands: Any, results: Any) -> Any:
    return (operands[1][0].sharding,) * len(results)


def _sharding_rule(update: _Reshaped, mesh: Any, operands: Any, results: Any) -> str:
    rank = len(results[0].shape)
    dims = " ".join(f"d{d}" for d in range(rank))
    words = [""] * (len(operands) - 1 - rank)
    return ", ".join([*words, *[dims] * (1 + rank)]) + " -> " + ", ".join([dims] * len(results))


_update_partitioned.def_partition(
    partition=_partition,
    infer_sharding_from_operands=_sharding_as_like,
    sharding_rule=_sharding_rule,
    decode_shardings=False,
)


def leaf_specs(specs: Any, tree: Any) -> list[PartitionSpec | None]:
    """One spec for each leaf of `tree`. `specs` is None or a prefix of the tree."""
    if specs is None:
        return [None for _ in jax.tree.leaves(tree)]

    def is_spec(x: Any) -> bool:
        return x is None or isinstance(x, PartitionSpec)

    found: list[PartitionSpec | None] = []
    try:
        jax.tree.map(
            lambda spec, part: found.extend([spec] * len(jax.tree.leaves(part))),
            specs,
            tree,
            is_leaf=is_spec,
        )
    except (ValueError, TypeError, KeyError) as error:
        # JAX says in two lines what differs and where, and then lists both trees.
        difference = in_one_line("\n".join(str(error).split("\n")[:2]))
        raise FixArgumentsError(
            f"specs does not match the tree of gradients ({difference}). Pass one PartitionSpec, "
            "or a tree of them that is a prefix of the gradients."
        ) from error
    if not all(map(is_spec, found)):
        raise FixArgumentsError(f"specs contains {found!r:.80}: use jax.sharding.PartitionSpec.")
    return found
