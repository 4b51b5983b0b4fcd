"""Make an array piece by piece, each from its place in the whole, on every kind of mesh.

What is made depends on where an element lies in the whole array, never on how the mesh cuts it.
A shard needs its place for that, and nothing else: no communication.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.sharding import types

Start = jax.Array | np.uint32


class Shard(NamedTuple):
    """A box of a larger array: a shard of it, or all. Starts are multiples of the shape."""

    shape: tuple[int, ...]
    whole: tuple[int, ...]
    starts: tuple[Start, ...]

    @classmethod
    def all_of(cls, shape: tuple[int, ...]) -> "Shard":
        return cls(shape, shape, (np.uint32(0),) * len(shape))


Arrays = tuple[jax.Array, ...]
Maker = Callable[[jax.Array, Shard], Arrays]


def generate_by_shard(
    make: Maker, words: jax.Array, like: jax.Array, spec: PartitionSpec | None = None
) -> Arrays:
    """`make(words, piece)` for every piece of arrays with the shape and place of `like`.

    Args:
      make: gives one piece of each array, in `piece.shape`, from its place alone. Hashable, so
        that programs are traced once, and without constants that are arrays.
      words: a vector that is the same everywhere.
      like: an array, or the shard of one inside `jax.shard_map`.
      spec: how the whole array is split over the manual axes of an enclosing `jax.shard_map`, where
        a shard cannot tell. Not needed where types say that all shards are the same.

    On Auto axes the compiler picks the pieces, also under `jit`; on Explicit axes the type of
    `like` says them.
    """
    axes = types.manual_axes()
    sharding = types.explicit_sharding(like)
    if sharding is None or not any(map(types.spec_axes, sharding.spec.partitions)):
        return _made_within_shards(make, words, like, spec)
    if axes:
        raise FixArgumentsError(
            f"an array is split over manual axes {axes} and over Explicit axes "
            f"({sharding.spec}) at once: run the enclosing shard_map over all of its axes."
        )
    return jax.shard_map(
        functools.partial(_made_within_shards, make, spec=sharding.spec),
        mesh=sharding.mesh,
        in_specs=(PartitionSpec(), sharding.spec),
        out_specs=sharding.spec,
        axis_names=set(types.explicit_axes(sharding.mesh)),
    )(words, like)


def _made_within_shards(
    make: Maker, words: jax.Array, like: jax.Array, spec: PartitionSpec | None
) -> Arrays:
    """As `made_by_pieces`, where no Explicit axis is left."""
    if types.manual_axes():
        # Axes that are not manual here are left to the compiler's own partitioning: JAX cannot
        # always give it a rule of ours inside a shard_map.
        return make(words, _piece_of_shard(like, spec))
    if not like.shape or len(jax.devices()) == 1:
        return make(words, Shard.all_of(like.shape))
    # Single words, which no mesh can cut.
    parts = tuple(words[i] for i in range(words.size))
    positions = [jax.lax.broadcasted_iota(np.uint32, like.shape, d) for d in range(like.ndim)]
    return _made_by_the_compilers_pieces(make, parts, (like, *positions))


def _piece_of_shard(like: jax.Array, spec: PartitionSpec | None) -> Shard:
    """The place of this shard in the whole array, which `spec` splits over manual axes."""
    sizes = jax.sharding.get_abstract_mesh().shape
    whole = list(like.shape)
    starts: list[Start] = [np.uint32(0) for _ in like.shape]
    for d, entry in enumerate(spec.partitions if spec is not None else ()):
        names = [a for a in types.spec_axes(entry) if a in types.manual_axes()]
        if names:
            index = jax.lax.axis_index(tuple(names)).astype(np.uint32)
            starts[d] = index * np.uint32(like.shape[d])
            whole[d] *= math.prod(sizes[a] for a in names)
    return Shard(like.shape, tuple(whole), tuple(starts))


# On Auto axes only the compiler knows the pieces. It is handed the positions of all elements along
# each dimension, cut as the result is: the first position of a piece is where it starts. So names
# of mesh axes play no role, and any way to cut is right. Positions that are not read are not made.


@functools.partial(custom_partitioning, static_argnums=(0,))
def _made_by_the_compilers_pieces(make: Maker, words: Arrays, arrays: Arrays) -> Arrays:
    return make(jnp.stack(words), Shard.all_of(arrays[0].shape))


def _partition(make: Maker, mesh: Any, operands: Any, results: Any) -> Any:
    words, arrays = operands
    whole, sharding = results[0].shape, results[0].sharding
    wide = any(result.dtype.itemsize == 8 for result in results)

    def lower(own_words: Arrays, own: Arrays) -> Arrays:
        like, *positions = own
        # The compiler may ask from a thread of its own, to which a `with jax.enable_x64(True)`
        # around the program means nothing (jax 0.10.2).
        with jax.enable_x64(wide or jax.config.jax_enable_x64):
            starts = tuple(p[(0,) * like.ndim] for p in positions)
            return make(jnp.stack(own_words), Shard(like.shape, whole, starts))

    alike = tuple((sharding,) * len(x) for x in (results, arrays))
    return mesh, lower, alike[0], (tuple(w.sharding for w in words), alike[1])


def _sharding_as_like(make: Maker, mesh: Any, operands: Any, results: Any) -> Any:
    return (operands[1][0].sharding,) * len(results)


def _sharding_rule(make: Maker, mesh: Any, operands: Any, results: Any) -> str:
    rank = len(results[0].shape)
    dims = " ".join(f"d{d}" for d in range(rank))
    words = [""] * (len(operands) - 1 - rank)
    return ", ".join([*words, *[dims] * (1 + rank)]) + " -> " + ", ".join([dims] * len(results))


_made_by_the_compilers_pieces.def_partition(
    partition=_partition,
    infer_sharding_from_operands=_sharding_as_like,
    sharding_rule=_sharding_rule,
    decode_shardings=False,
)


def leaf_specs(specs: Any, tree: Any) -> list[PartitionSpec | None]:
    """One spec for each leaf of `tree`; `specs` is a prefix of it, or None."""
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
        raise FixArgumentsError(
            f"specs does not fit the tree of gradients: {error}. Give one PartitionSpec, or a tree "
            "of them that is a prefix of the gradients."
        ) from error
    if not all(map(is_spec, found)):
        raise FixArgumentsError(f"specs holds {found!r:.80}: give jax.sharding.PartitionSpecs.")
    return found
