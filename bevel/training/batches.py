"""Selects the batch of each step, pads it to one of a few sizes and places it on the mesh."""

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from bevel.batch_selection import (
    BMinSepSampling,
    MinSepState,
    PaddedSizes,
    UserSelectionStrategy,
)
from bevel.batch_selection.padding import PADDING, pad_to_size, rows_at
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.errors import FixArgumentsError
from bevel.training.data import DataSource, rows

PyTree = Any
# Indices, and the arrays that were read, by (start, stop) row.
_Shards = dict[tuple[int, int], list[np.ndarray]]
# Mesh axes with these names are assumed to shard the batch.
BATCH_AXES = ("replica", "data", "fsdp", "batch")


class Batch(NamedTuple):
    """The input of one step. All arrays have one row per example or user, padding included.

    `is_missing` is None when examples are protected. When users are, it has shape (users, examples
    per user) and is True where a user has no example. `digest` is a keyed hash of the rows that
    this process read. `sampler_state` is what the sampler remembers after this step, if anything.
    """

    step: int
    data: PyTree
    is_padding: jax.Array
    is_missing: jax.Array | None
    digest: bytes = b""
    sampler_state: MinSepState | None = None


class Selection(NamedTuple):
    """The rows of one step before they are read.

    `draw(places)` returns the indices at these places of the padded batch, -1 for padding. It draws
    nothing else if the sampler allows it.
    """

    size: int
    draw: Callable[[np.ndarray], np.ndarray]
    sampler_state: MinSepState | None = None


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """How a batch is sharded: over the given `axes` of a mesh, or on one device without a mesh."""

    mesh: Mesh | None = None
    axes: tuple[str, ...] = ()

    @property
    def sharding(self) -> jax.sharding.Sharding:
        if self.mesh is None:
            return SingleDeviceSharding(jax.local_devices()[0])
        return NamedSharding(self.mesh, PartitionSpec(self.axes or None))

    @property
    def parts(self) -> int:
        """The number of shards of a batch. Every padded size must be a multiple of it."""
        return 1 if self.mesh is None else math.prod(self.mesh.shape[axis] for axis in self.axes)


def batch_layout(mesh: Mesh | None, axes: tuple[str, ...] | str | None = None) -> BatchLayout:
    """Returns the layout over the given mesh axes, by default those named in `BATCH_AXES`."""
    if mesh is None:
        return BatchLayout()
    if axes is None:
        axes = tuple(axis for axis in mesh.axis_names if axis in BATCH_AXES)
        if not axes:
            raise FixArgumentsError(
                f"none of the mesh axes {mesh.axis_names} has one of the names that shard the "
                f"batch by default ({', '.join(BATCH_AXES)}). Pass the axes with batch_axes=."
            )
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    unknown = [axis for axis in axes if axis not in mesh.axis_names]
    if unknown:
        raise FixArgumentsError(
            f"batch_axes={axes}: the mesh has no axis {unknown[0]!r}, only {mesh.axis_names}."
        )
    return BatchLayout(mesh, axes)


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a run: a function of (seed, step), the same on every mesh.

    Attributes:
      source: the data set.
      sampler: the plan's sampler.
      population: what is sampled: the number of examples, or an `ExamplesByUser`.
      sizes: the sizes that batches are padded to. No example is dropped: a batch above the largest
        size is padded to a larger one.
      layout: the sharding of a batch. Every process draws and reads the rows of its own devices.
      microbatch_size: the plan's, so that padding fills the last microbatches.
      seed: the sampler's seed. Secret.
      digest_key: the key of the row digests, which reveal nothing without it. Secret.
    """

    source: DataSource
    sampler: Any
    population: Any
    sizes: PaddedSizes
    layout: BatchLayout = BatchLayout()
    microbatch_size: int | None = None
    seed: int = dataclasses.field(default=0, repr=False)
    digest_key: bytes = dataclasses.field(default=b"", repr=False)

    def selections(self, first: int = 0, state: MinSepState | None = None) -> Iterator[Selection]:
        """Yields what is selected at each step, beginning with step `first`.

        `state` is what the sampler remembered before that step. Without it, samplers that depend on
        earlier steps draw those again, but no record is read.
        """
        base, count = self._base()
        if isinstance(base, RandomAccessSampler):
            for step in range(first, base.iterations):
                size = base.batch_size_at(step, count, self.seed)
                draw = functools.partial(self._drawn, step, size)
                yield Selection(self.sizes.size_for(size), draw)
        elif isinstance(base, BMinSepSampling):
            now = state or base.initial_state(count, self.seed)
            while now.step < base.iterations:
                step, (batch, now) = now.step, base.next_batch(now, count, self.seed)
                if step >= first:
                    yield self._selection(self._examples_of(batch, step), now)
        else:
            every_step = self.sampler.batch_iterator(self.population, self.seed)
            yield from map(self._selection, itertools.islice(every_step, first, None))

    def _drawn(self, step: int, size: int, places: np.ndarray) -> np.ndarray:
        """Draws what is at these places of the padded batch of a step with `size` rows."""
        base, count = self._base()
        drawn_rows = rows_at(places, self.sizes.size_for(size), self.microbatch_size)
        present = drawn_rows < size
        drawn = self._examples_of(base.at_rows(step, count, self.seed, drawn_rows[present]), step)
        padded = np.full((len(places), *drawn.shape[1:]), PADDING, np.int64)
        padded[present] = drawn
        return padded

    def _base(self) -> tuple[Any, int]:
        """The sampler of users or examples, and their number."""
        if isinstance(self.sampler, UserSelectionStrategy):
            return self.sampler.base_strategy, len(self.population)
        return self.sampler, self.population

    def _examples_of(self, selected: np.ndarray, step: int) -> np.ndarray:
        """The examples of selected users, or the selected examples themselves."""
        if not isinstance(self.sampler, UserSelectionStrategy):
            return selected
        return self.sampler.examples_of(selected, step, self.population, self.seed)

    def _selection(self, batch: np.ndarray, state: MinSepState | None = None) -> Selection:
        """The selection of a batch that was drawn as a whole."""
        padded = pad_to_size(batch, self.sizes.size_for(len(batch)), self.microbatch_size)
        return Selection(len(padded), padded.astype(np.int64).__getitem__, state)

    def since(self, first: int, state: MinSepState | None = None) -> Iterator[Batch]:
        """Yields the batch of each step on the mesh, beginning with step `first`."""
        for step, selection in enumerate(self.selections(first, state), first):
            yield self.load(step, selection)

    def load(self, step: int, selection: Selection) -> Batch:
        """Reads the selected records of this process and places them on the mesh."""
        inner, size = self._inner_shape(), selection.size
        shards = self.read(selection, self.bounds(size))

        def sharded_array(part: int, shape: tuple[int, ...]) -> jax.Array:
            def shard_data(index: Any) -> np.ndarray:
                return shards[index[0].indices(size)[:2]][part]

            return jax.make_array_from_callback(shape, self.layout.sharding, shard_data)

        records, tree = jax.tree.flatten(self.source.record)
        shape = (size, *inner)
        data = [sharded_array(k + 3, (*shape, *x.shape)) for k, x in enumerate(records)]
        is_padding = sharded_array(1, shape[:1])
        is_missing = sharded_array(2, shape) if inner else None
        return Batch(
            step,
            jax.tree.unflatten(tree, data),
            is_padding,
            is_missing,
            self._digest(shards),
            selection.sampler_state,
        )

    def bounds(
        self, size: int, devices: Iterable[jax.Device] | None = None
    ) -> list[tuple[int, int]]:
        """Returns the (start, stop) rows that devices hold of a batch of `size` rows.

        By default those of this process. Replicas hold the same rows, which are listed once.
        """
        sharding = self.layout.sharding
        held: Mapping[jax.Device, Any] = sharding.addressable_devices_indices_map((size,))
        if devices is not None:
            of_all = sharding.devices_indices_map((size,))
            held = {device: of_all[device] for device in devices}
        return sorted({index[0].indices(size)[:2] for index in held.values() if index})

    def read(self, selection: Selection, bounds: Sequence[tuple[int, int]]) -> _Shards:
        """Draws the rows in these bounds and reads their records, and no others.

        Returns, for each of the bounds, the indices, what is padding, what is missing, and the
        leaves of the records.
        """
        # All rows at once, because a draw of a few rows takes as long as of many.
        drawn = selection.draw(np.concatenate([np.arange(*ends) for ends in bounds]))
        ends = np.cumsum([stop - start for start, stop in bounds])
        shards: _Shards = {}
        for shard, indices in zip(bounds, np.split(drawn, ends[:-1]), strict=True):
            present = indices >= 0
            is_padding = ~present.any(axis=1) if self._inner_shape() else ~present
            data = jax.tree.leaves(jax.tree.map(_canonical, rows(self.source, indices)))
            shards[shard] = [indices, is_padding, ~present, *data]
        return shards

    def _digest(self, shards: _Shards) -> bytes:
        """Hashes the records of a step, their indices and their rows. Empty without a key."""
        if not self.digest_key:
            return b""
        hashed = hashlib.blake2b(key=self.digest_key, person=b"bevel rows", digest_size=16)
        for bounds in sorted(shards):
            for part in (np.asarray(bounds, np.int64), *shards[bounds]):
                hashed.update(np.ascontiguousarray(part).view(np.uint8).data)
        return hashed.digest()

    def shapes(self, size: int) -> Batch:
        """Returns the shapes and shardings of a batch of `size` rows, to compile a step for it."""
        inner = self._inner_shape()

        def shaped(shape: tuple[int, ...], dtype: Any) -> Any:
            dtype = jax.dtypes.canonicalize_dtype(dtype)
            return jax.ShapeDtypeStruct(shape, dtype, sharding=self.layout.sharding)

        data = jax.tree.map(lambda x: shaped((size, *inner, *x.shape), x.dtype), self.source.record)
        missing = shaped((size, *inner), np.bool_) if inner else None
        return Batch(0, data, shaped((size,), np.bool_), missing)

    def _inner_shape(self) -> tuple[int, ...]:
        """The shape of a row: (examples per user,) for users, () for examples."""
        users = isinstance(self.sampler, UserSelectionStrategy)
        return (self.sampler.examples_per_user_per_batch,) if users else ()


def _canonical(values: np.ndarray) -> np.ndarray:
    """Casts to the dtype that JAX uses: 64 bits become 32, unless x64 is enabled."""
    return values.astype(jax.dtypes.canonicalize_dtype(values.dtype), copy=False)
