"""Find the sharding of each leaf of a tree: arrays, shapes, and values inside `jit`.

| leaf | source of its sharding |
| --- | --- |
| array, ShapeDtypeStruct with a sharding | its `sharding` |
| value inside `jit`, on a mesh with only Explicit axes | its type |
| other value inside `jit` | the compiler, once the program is compiled |
| value inside `shard_map` | it is one shard, and its type says over which axes shards differ |
| NumPy array, number, shape without a sharding | it has none |
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
    """One leaf and its sharding, as far as it is known."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    sharding: Sharding | None
    note: str = ""
    copies: int | None = None  # of a shard inside shard_map, if its type says so

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of the largest shard, or of the array if no sharding is known."""
        if self.sharding is None:
            return self.shape
        try:
            return tuple(self.sharding.shard_shape(self.shape))
        except ValueError:  # uneven
            sizes = [_lengths(index, self.shape) for index in self.indices().values()]
            return tuple(map(max, zip(*sizes, strict=True)))

    def indices(self) -> dict[Any, tuple[slice, ...]]:
        """The index of each device's shard. Devices of an abstract mesh are numbered from 0."""
        if self.sharding is None:
            return {}
        sharding = self.sharding
        if isinstance(sharding, NamedSharding) and not isinstance(sharding.mesh, jax.sharding.Mesh):
            return abstract_indices(sharding, self.shape)
        return dict(sharding.devices_indices_map(self.shape))

    def bytes_by_device(self) -> dict[Any, int]:
        """Bytes on each device, by device id."""
        return {
            getattr(device, "id", device): math.prod(_lengths(index, self.shape)) * self.itemsize
            for device, index in self.indices().items()
        }


def _lengths(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[int]:
    return [len(range(*part.indices(size))) for part, size in zip(index, shape, strict=True)]


def abstract_indices(
    sharding: NamedSharding, shape: tuple[int, ...]
) -> dict[int, tuple[slice, ...]]:
    """`devices_indices_map` for an abstract mesh, with numbers instead of devices."""
    sizes = sharding.mesh.shape
    indices = {}
    for number, coordinates in enumerate(np.ndindex(*sizes.values())):
        coordinate = dict(zip(sizes, coordinates, strict=True))
        index = []
        for d, size in enumerate(shape):
            entry = sharding.spec.partitions[d] if d < len(sharding.spec.partitions) else None
            axes = types.spec_axes(entry)
            part = 0
            for axis in axes:
                part = part * sizes[axis] + coordinate[axis]
            length = -(-size // math.prod(sizes[axis] for axis in axes))
            start, stop = min(part * length, size), min((part + 1) * length, size)
            index.append(slice(start, stop) if axes else slice(None))
        indices[number] = tuple(index)
    return indices


Report = Callable[[list[LeafSharding]], None]


def leaf_shardings(tree: Any, when_compiled: Report | None = None) -> list[LeafSharding]:
    """The sharding of each leaf, as far as it is known now.

    If the compiler still has to choose the sharding of some leaves, `when_compiled` is called with
    all leaves each time the program is compiled. Values under `vmap` then have the batch dimension
    in front. If all shardings are known now, it is not called.
    """
    flat = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_box)
    known = [
        _leaf_sharding(jax.tree_util.keystr(path, simple=True, separator="/"), unboxed(leaf))
        for path, leaf in flat
    ]
    if when_compiled is None:
        return known
    undecided = {
        i: unboxed(leaf) for i, (_, leaf) in enumerate(flat) if known[i].note == COMPILER_DECIDES
    }
    decided = dict[int, LeafSharding]()

    def add(i: int, shape: tuple[int, ...], sharding: Sharding) -> None:
        batched = len(shape) - len(known[i].shape)
        note = f"batched by vmap, {batched} in front" if batched else ""
        decided[i] = dataclasses.replace(known[i], shape=shape, sharding=sharding, note=note)
        if len(decided) == len(undecided):
            when_compiled([decided.get(k, row) for k, row in enumerate(known)])
            decided.clear()

    for i, leaf in undecided.items():
        _inspect_when_compiled(leaf, functools.partial(add, i))
    return known


COMPILER_DECIDES = "the compiler decides"


def _leaf_sharding(path: str, leaf: Any) -> LeafSharding:
    if isinstance(leaf, bool | int | float | complex | np.generic):
        leaf = np.asarray(leaf)
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise FixArgumentsError(
            f"{path or 'the tree'} is a {type(leaf).__name__}, not an array: remove such leaves, "
            "for example with equinox.partition or flax.nnx.split."
        )
    name = getattr(leaf.dtype, "name", None) or str(leaf.dtype)
    found = LeafSharding(path, tuple(leaf.shape), name, leaf.dtype.itemsize, None)
    if not isinstance(leaf, jax.core.Tracer):
        sharding = getattr(leaf, "sharding", None)
        missing = "no sharding" if isinstance(leaf, jax.ShapeDtypeStruct) else "on the host"
        note = "" if sharding is not None else missing
        return dataclasses.replace(found, sharding=sharding, note=note)
    manual = types.manual_axes()
    if manual:
        return _manual_shard(found, leaf, manual)
    explicit = types.explicit_sharding(leaf)
    if explicit is not None and set(explicit.mesh.axis_types) == {AxisType.Explicit}:
        return dataclasses.replace(found, sharding=explicit)
    return dataclasses.replace(found, note=COMPILER_DECIDES)


def _manual_shard(found: LeafSharding, leaf: Any, manual: tuple[str, ...]) -> LeafSharding:
    """A value inside `shard_map`: each device has a shard of this shape."""
    if not types.types_track_varying_axes():
        return dataclasses.replace(found, note=f"one shard over {', '.join(manual)}")
    varying = [axis for axis in manual if axis in types.varying_axes(leaf)]
    sizes = jax.sharding.get_abstract_mesh().shape
    copies = math.prod(sizes[axis] for axis in manual if axis not in varying)
    note = f"one shard, differs over {', '.join(varying)}" if varying else "the same on every shard"
    return dataclasses.replace(found, note=note, copies=copies)


def _inspect_when_compiled(x: Any, callback: Callable[[tuple[int, ...], Sharding], None]) -> None:
    """Calls `callback(shape, sharding)` when the compiler has chosen the sharding of `x`."""

    @jax.custom_batching.custom_vmap
    def inspect(x: Any) -> tuple[()]:
        shape = tuple(x.shape)
        jax.debug.inspect_array_sharding(x, callback=lambda sharding: callback(shape, sharding))
        return ()

    # Without this rule, JAX reports the batched array's sharding with the unbatched shape.
    @inspect.def_vmap
    def inspect_batched(size: int, batched: Any, x: Any) -> tuple[tuple[()], tuple[()]]:
        inspect(x)
        return (), ()

    inspect(jax.lax.stop_gradient(x))
