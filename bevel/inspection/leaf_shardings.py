"""Where each leaf of a tree lies: arrays, shapes, and values inside `jit`.

| leaf | what says where it lies |
| --- | --- |
| array, ShapeDtypeStruct with a sharding | its sharding |
| value inside `jit`, all axes of its mesh Explicit | its type |
| value inside `jit` otherwise | the compiler, when it has placed everything |
| value inside `shard_map` | it is one shard, and its type says over which axes shards differ |
| NumPy array, number, shape without a sharding | nothing |
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, Sharding

from bevel.errors import FixArgumentsError
from bevel.sharding import types
from bevel.sharding.flax_boxes import is_box, unboxed


@dataclasses.dataclass(frozen=True)
class LeafSharding:
    """One leaf: what it is, and where it lies as far as is known."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    sharding: Sharding | None
    note: str = ""
    copies: int | None = None  # of a shard inside shard_map, if types say

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of the largest shard; the whole where nothing is known."""
        if self.sharding is None:
            return self.shape
        try:
            return tuple(self.sharding.shard_shape(self.shape))
        except ValueError:  # uneven
            sizes = [_lengths(index, self.shape) for index in self.indices().values()]
            return tuple(map(max, zip(*sizes, strict=True)))

    def indices(self) -> dict[Any, tuple[slice, ...]]:
        """The part of the whole that each device holds; an abstract mesh numbers its devices."""
        if self.sharding is None:
            return {}
        sharding = self.sharding
        if isinstance(sharding, NamedSharding) and not isinstance(sharding.mesh, jax.sharding.Mesh):
            return abstract_indices(sharding, self.shape)
        return dict(sharding.devices_indices_map(self.shape))

    def bytes_by_device(self) -> dict[Any, int]:
        """Bytes on each device, by its number."""
        return {
            getattr(device, "id", device): math.prod(_lengths(index, self.shape)) * self.itemsize
            for device, index in self.indices().items()
        }


def _lengths(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[int]:
    return [len(range(*part.indices(size))) for part, size in zip(index, shape, strict=True)]


def abstract_indices(
    sharding: NamedSharding, shape: tuple[int, ...]
) -> dict[int, tuple[slice, ...]]:
    """What `devices_indices_map` gives, for a mesh without devices; their numbers instead."""
    sizes = sharding.mesh.shape
    found = {}
    for number, place in enumerate(np.ndindex(*sizes.values())):
        at = dict(zip(sizes, place, strict=True))
        index = []
        for d, size in enumerate(shape):
            entry = sharding.spec.partitions[d] if d < len(sharding.spec.partitions) else None
            axes = types.spec_axes(entry)
            part = 0
            for axis in axes:
                part = part * sizes[axis] + at[axis]
            each = -(-size // math.prod(sizes[axis] for axis in axes))
            start, stop = min(part * each, size), min((part + 1) * each, size)
            index.append(slice(start, stop) if axes else slice(None))
        found[number] = tuple(index)
    return found


Report = Callable[[list[LeafSharding]], None]


def leaf_shardings(tree: Any, when_compiled: Report | None = None) -> list[LeafSharding]:
    """Where each leaf lies, as far as is known now.

    `when_compiled` is called with all of them when the compiler has placed those inside `jit` that
    were not known: once for each time that it compiles the program. A value under `vmap` has the
    batch in front then. It is not called if all is known now.
    """
    flat = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_box)
    known = [
        _leaf_sharding(jax.tree_util.keystr(path, simple=True, separator="/"), unboxed(leaf))
        for path, leaf in flat
    ]
    if when_compiled is None:
        return known
    open_leaves = {
        i: unboxed(leaf) for i, (_, leaf) in enumerate(flat) if known[i].note == COMPILER_DECIDES
    }
    seen = dict[int, LeafSharding]()

    def placed(i: int, shape: tuple[int, ...], sharding: Sharding) -> None:
        batched = len(shape) - len(known[i].shape)
        said = f"batched by vmap, {batched} in front" if batched else ""
        seen[i] = dataclasses.replace(known[i], shape=shape, sharding=sharding, note=said)
        if len(seen) == len(open_leaves):
            when_compiled([seen.get(k, row) for k, row in enumerate(known)])
            seen.clear()

    for i, leaf in open_leaves.items():
        _ask_the_compiler(leaf, functools.partial(placed, i))
    return known


COMPILER_DECIDES = "the compiler decides"


def _leaf_sharding(path: str, leaf: Any) -> LeafSharding:
    if isinstance(leaf, bool | int | float | complex | np.generic):
        leaf = np.asarray(leaf)
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise FixArgumentsError(
            f"{path or 'the tree'} is a {type(leaf).__name__}, not an array: it lies nowhere."
        )
    name = getattr(leaf.dtype, "name", None) or str(leaf.dtype)
    found = LeafSharding(path, tuple(leaf.shape), name, leaf.dtype.itemsize, None)
    if not isinstance(leaf, jax.core.Tracer):
        sharding = getattr(leaf, "sharding", None)
        where = "no sharding" if isinstance(leaf, jax.ShapeDtypeStruct) else "on the host"
        note = "" if sharding is not None else where
        return dataclasses.replace(found, sharding=sharding, note=note)
    manual = types.manual_axes()
    if manual:
        return _shard_within(found, leaf, manual)
    explicit = types.explicit_sharding(leaf)
    if explicit is not None and set(explicit.mesh.axis_types) == {AxisType.Explicit}:
        return dataclasses.replace(found, sharding=explicit)
    return dataclasses.replace(found, note=COMPILER_DECIDES)


def _shard_within(found: LeafSharding, leaf: Any, manual: tuple[str, ...]) -> LeafSharding:
    """A value inside `shard_map`: every device has one of this shape."""
    if not types.types_track_varying_axes():
        return dataclasses.replace(found, note=f"one shard over {', '.join(manual)}")
    varying = [axis for axis in manual if axis in types.varying_axes(leaf)]
    sizes = jax.sharding.get_abstract_mesh().shape
    copies = math.prod(sizes[axis] for axis in manual if axis not in varying)
    note = f"one shard, differs over {', '.join(varying)}" if varying else "the same on every shard"
    return dataclasses.replace(found, note=note, copies=copies)


def _ask_the_compiler(x: Any, answer: Callable[[tuple[int, ...], Sharding], None]) -> None:
    """Calls `answer(shape, sharding)` when the compiler has placed `x`."""

    @jax.custom_batching.custom_vmap
    def look(x: Any) -> tuple[()]:
        shape = tuple(x.shape)
        jax.debug.inspect_array_sharding(x, callback=lambda sharding: answer(shape, sharding))
        return ()

    # JAX would report the place of the batched array under the shape of one element.
    @look.def_vmap
    def look_at_the_batch(size: int, batched: Any, x: Any) -> tuple[tuple[()], tuple[()]]:
        look(x)
        return (), ()

    look(jax.lax.stop_gradient(x))
