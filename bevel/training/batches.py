"""Selects the batch of each step, pads it to one of a few sizes and places it on the mesh."""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from bevel.batch_selection import PaddedSizes, UserSelectionStrategy
from bevel.batch_selection.padding import pad_to_size
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.errors import FixArgumentsError
from bevel.training.data import DataSource, rows

PyTree = Any
_Shards = dict[tuple[int, int], list[np.ndarray]]  # arrays by (start, stop) row
# Mesh axes with these names are assumed to shard the batch.
BATCH_AXES = ("replica", "data", "fsdp", "batch")


class Batch(NamedTuple):
    """The input of one step. All arrays have one row per example or user, padding included.

    `is_missing` is None when examples are protected. When users are, it has shape (users, examples
    per user) and is True where a user has no example. `digest` is a keyed hash of the rows that
    this process read.
    """

    step: int
    data: PyTree
    is_padding: jax.Array
    is_missing: jax.Array | None
    digest: bytes = b""


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
      layout: the sharding of a batch. Every process reads the rows of its own devices.
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

    def indices(self, first: int = 0) -> Iterator[np.ndarray]:
        """Yields the padded record indices of each step, beginning with step `first`."""
        base = getattr(self.sampler, "base_strategy", self.sampler)
        if isinstance(base, RandomAccessSampler):
            steps = range(first, self.sampler.iterations)
            drawn: Iterator[np.ndarray] = (
                self.sampler.batch(step, self.population, self.seed) for step in steps
            )
        else:  # each step depends on the previous ones, so draw those again; no record is read
            all_steps = self.sampler.batch_iterator(self.population, self.seed)
            drawn = itertools.islice(all_steps, first, None)
        for batch in drawn:
            yield pad_to_size(batch, self.sizes.size_for(len(batch)), self.microbatch_size)

    def since(self, first: int) -> Iterator[Batch]:
        """Yields the batch of each step on the mesh, beginning with step `first`."""
        for step, indices in enumerate(self.indices(first), first):
            yield self.load(step, indices)

    def load(self, step: int, indices: np.ndarray) -> Batch:
        """Reads the records with the given padded indices and places them on the mesh."""
        by_user = indices.ndim == 2
        shards: _Shards = {}

        def read_shard(shard: slice) -> list[np.ndarray]:
            """Reads a range of rows once, however many devices hold it."""
            bounds = shard.indices(len(indices))[:2]
            if bounds not in shards:
                shard_indices = indices[slice(*bounds)]
                present = shard_indices >= 0
                is_padding = ~present.any(axis=1) if by_user else ~present
                data = jax.tree.leaves(jax.tree.map(_canonical, rows(self.source, shard_indices)))
                shards[bounds] = [is_padding, ~present, *data]
            return shards[bounds]

        def sharded_array(leaf: int, shape: tuple[int, ...]) -> jax.Array:
            def shard_data(index: Any) -> np.ndarray:
                return read_shard(index[0])[leaf]

            return jax.make_array_from_callback(shape, self.layout.sharding, shard_data)

        records, tree = jax.tree.flatten(self.source.record)
        data = [sharded_array(k + 2, (*indices.shape, *x.shape)) for k, x in enumerate(records)]
        is_padding = sharded_array(0, indices.shape[:1])
        is_missing = sharded_array(1, indices.shape) if by_user else None
        digest = self._digest(indices, shards)
        return Batch(step, jax.tree.unflatten(tree, data), is_padding, is_missing, digest)

    def _digest(self, indices: np.ndarray, shards: _Shards) -> bytes:
        """Hashes the records of a step, their indices and their rows. Empty without a key."""
        if not self.digest_key:
            return b""
        hashed = hashlib.blake2b(key=self.digest_key, person=b"bevel rows", digest_size=16)
        for bounds in sorted(shards):
            shard_indices = np.ascontiguousarray(indices[slice(*bounds)], np.int64)
            for part in (np.asarray(bounds, np.int64), shard_indices, *shards[bounds]):
                hashed.update(np.ascontiguousarray(part).view(np.uint8).data)
        return hashed.digest()

    def shapes(self, size: int) -> Batch:
        """Returns the shapes and shardings of a batch of `size` rows, to compile a step for it."""
        users = isinstance(self.sampler, UserSelectionStrategy)
        inner = (self.sampler.examples_per_user_per_batch,) if users else ()

        def shaped(shape: tuple[int, ...], dtype: Any) -> Any:
            dtype = jax.dtypes.canonicalize_dtype(dtype)
            return jax.ShapeDtypeStruct(shape, dtype, sharding=self.layout.sharding)

        data = jax.tree.map(lambda x: shaped((size, *inner, *x.shape), x.dtype), self.source.record)
        missing = shaped((size, *inner), np.bool_) if users else None
        return Batch(0, data, shaped((size,), np.bool_), missing)


def _canonical(values: np.ndarray) -> np.ndarray:
    """Casts to the dtype that JAX uses: 64 bits become 32, unless x64 is enabled."""
    return values.astype(jax.dtypes.canonicalize_dtype(values.dtype), copy=False)
