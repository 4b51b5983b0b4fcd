"""Update sharded arrays shard by shard, on every kind of mesh.

Each element is a function of its position in the full array, so the result does not depend on the
mesh. A shard needs only its own position, so there is no communication.
"""

import functools
import math
from collections.abc import Callable, Sequence
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
Updater = Callable[[jax.Array, tuple[Shard, ...], Arrays], Arrays]


def update_by_shard(
    update: Updater,
    words: jax.Array,
    arrays: Arrays,
    specs: Sequence[PartitionSpec | None],
) -> Arrays:
    """Calls `update(words, shards, arrays)` on every device, and returns the sharded results.

    On Auto axes the compiler chooses the shards, even under `jit`. On Explicit axes they follow
    from the types of the arrays.

    Args:
      update: gets the shards that a device has, and returns one result for each, of its shape. It
        must be hashable, so that programs are traced once, and must not close over arrays.
      words: key data or another vector that is the same on all devices.
      arrays: arrays with the shapes and shardings of the results, on one mesh, or their shards
        inside `jax.shard_map`.
      specs: how each full array is split over the manual axes of an enclosing `jax.shard_map`,
        which a shard does not know. Not needed if its type says that all shards are equal.
    """
    axes = types.manual_axes()
    shardings = [types.explicit_sharding(x) for x in arrays]
    mesh = next((s.mesh for s in shardings if s is not None), None)
    if mesh is None:
        return _update_without_explicit_axes(update, words, arrays, specs)
    inner = tuple(PartitionSpec() if s is None else s.spec for s in shardings)
    if axes:
        raise FixArgumentsError(
            f"an array is split over manual axes {axes} and over Explicit axes ({inner[0]}) at "
            "once: run the enclosing shard_map over all of its axes."
        )
    return jax.shard_map(
        functools.partial(_update_without_explicit_axes, update, specs=inner),
        mesh=mesh,
        in_specs=(PartitionSpec(), inner),
        out_specs=inner,
        axis_names=set(types.explicit_axes(mesh)),
    )(words, arrays)


def _update_without_explicit_axes(
    update: Updater, words: jax.Array, arrays: Arrays, specs: Sequence[PartitionSpec | None]
) -> Arrays:
    """`update_by_shard` where the arrays are not sharded over Explicit axes."""
    if types.manual_axes():
        # The compiler partitions over the axes that are not manual as it likes: inside a
        # shard_map, JAX cannot always pass on a custom partitioning rule.
        shards = tuple(map(_manual_shard, arrays, specs))
        return update(words, shards, arrays)
    if len(jax.devices()) == 1 or not any(x.shape for x in arrays):
        return update(words, tuple(Shard.all_of(x.shape) for x in arrays), arrays)
    # Scalars, because a vector could be sharded.
    scalars = tuple(words[i] for i in range(len(words)))
    positions = [
        [jax.lax.broadcasted_iota(np.uint32, x.shape, d) for d in range(x.ndim)] for x in arrays
    ]
    return _update_partitioned(update, scalars, arrays, positions)


def constant(values: np.ndarray) -> jax.Array:
    """An array of constants. The `jit` hides it: custom partitioning accepts scalars only."""
    return jax.jit(lambda: jnp.asarray(values))()


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


Positions = list[list[jax.Array]]  # of each array, along each dimension


@functools.partial(custom_partitioning, static_argnums=(0,))
def _update_partitioned(
    update: Updater, words: Arrays, arrays: Arrays, positions: Positions
) -> Arrays:
    return update(jnp.stack(words), tuple(Shard.all_of(x.shape) for x in arrays), arrays)


def _partition(update: Updater, mesh: Any, operands: Any, results: Any) -> Any:
    words = operands[0]
    shardings = tuple(result.sharding for result in results)
    full_shapes = [result.shape for result in results]
    needs_x64 = any(result.dtype.itemsize == 8 for result in results)

    def lower(words: Arrays, arrays: Arrays, positions: Positions) -> Arrays:
        # The compiler may call this in a thread of its own, where a `with jax.enable_x64(True)`
        # around the program has no effect (JAX 0.10.2).
        with jax.enable_x64(needs_x64 or jax.config.jax_enable_x64):
            shards = tuple(
                Shard(x.shape, full, tuple(p[(0,) * x.ndim] for p in along))
                for x, full, along in zip(arrays, full_shapes, positions, strict=True)
            )
            return update(jnp.stack(words), shards, arrays)

    along = [[s] * len(p) for s, p in zip(shardings, operands[2], strict=True)]
    return mesh, lower, shardings, (tuple(w.sharding for w in words), shardings, along)


def _sharding_as_like(update: Updater, mesh: Any, operands: Any, results: Any) -> Any:
    return tuple(x.sharding for x in operands[1])


def _sharding_rule(update: Updater, mesh: Any, operands: Any, results: Any) -> str:
    ranks = [len(result.shape) for result in results]
    dims = [" ".join(f"d{i}_{d}" for d in range(rank)) for i, rank in enumerate(ranks)]
    positions = [dim for dim, rank in zip(dims, ranks, strict=True) for _ in range(rank)]
    words = [""] * (len(operands) - len(dims) - len(positions))
    return ", ".join([*words, *dims, *positions]) + " -> " + ", ".join(dims)


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
