"""Select: from a step to its batch on the mesh, padded to a few sizes."""

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
# Names under which a mesh axis usually carries examples.
BATCH_AXES = ("replica", "data", "fsdp", "batch")


class Batch(NamedTuple):
    """What one step works on. All arrays have a leading axis of `size` rows.

    `is_missing` is None for examples; for users it marks, (users, examples per user), the places
    where a user has no example. `digest` is a keyed one of the rows that this process read.
    """

    step: int
    data: PyTree
    is_padding: jax.Array
    is_missing: jax.Array | None
    digest: bytes = b""


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """Where the rows of a batch lie: on all `axes` of a mesh, or on one device."""

    mesh: Mesh | None = None
    axes: tuple[str, ...] = ()

    @property
    def sharding(self) -> jax.sharding.Sharding:
        if self.mesh is None:
            return SingleDeviceSharding(jax.local_devices()[0])
        return NamedSharding(self.mesh, PartitionSpec(self.axes or None))

    @property
    def parts(self) -> int:
        """How many parts the rows are split into: what a padded size is a multiple of."""
        return 1 if self.mesh is None else math.prod(self.mesh.shape[axis] for axis in self.axes)


def batch_layout(mesh: Mesh | None, axes: tuple[str, ...] | str | None = None) -> BatchLayout:
    """The layout on a mesh: over the given axes, or those that are named as ones for examples."""
    if mesh is None:
        return BatchLayout()
    if axes is None:
        axes = tuple(axis for axis in mesh.axis_names if axis in BATCH_AXES)
        if not axes:
            raise FixArgumentsError(
                f"the mesh has the axes {mesh.axis_names}, none of which is named as one that "
                f"carries examples ({', '.join(BATCH_AXES)}): say which do with batch_axes=."
            )
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    unknown = [axis for axis in axes if axis not in mesh.axis_names]
    if unknown:
        raise FixArgumentsError(f"batch_axes={axes}: the mesh has the axes {mesh.axis_names}.")
    return BatchLayout(mesh, axes)


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a run: a function of (seed, step), the same on every mesh.

    Attributes:
      source: the records.
      strategy: the plan's sampler.
      population: what it samples from: the number of examples, or the examples by user.
      sizes: to which batches are padded. A larger batch goes to a larger size: nothing is dropped.
      layout: where rows lie. Every process reads the rows of its own devices.
      microbatch_size: of the plan, so that padding fills the last microbatches.
      seed: of the sampler. Secret.
      digest_key: of the digests of rows: without it, they tell nothing of the data. Secret.
    """

    source: DataSource
    strategy: Any
    population: Any
    sizes: PaddedSizes
    layout: BatchLayout = BatchLayout()
    microbatch_size: int | None = None
    seed: int = dataclasses.field(default=0, repr=False)
    digest_key: bytes = dataclasses.field(default=b"", repr=False)

    def indices(self, first: int = 0) -> Iterator[np.ndarray]:
        """The padded numbers of the records of each step, from step `first` on."""
        base = getattr(self.strategy, "base_strategy", self.strategy)
        if isinstance(base, RandomAccessSampler):
            steps = range(first, self.strategy.iterations)
            drawn: Iterator[np.ndarray] = (
                self.strategy.batch(step, self.population, self.seed) for step in steps
            )
        else:  # a step depends on those before it: they are drawn again, which reads no record
            every = self.strategy.batch_iterator(self.population, self.seed)
            drawn = itertools.islice(every, first, None)
        for batch in drawn:
            yield pad_to_size(batch, self.sizes.size_for(len(batch)), self.microbatch_size)

    def since(self, first: int) -> Iterator[Batch]:
        """The batches from step `first` on, on the mesh."""
        for step, indices in enumerate(self.indices(first), first):
            yield self.of(step, indices)

    def of(self, step: int, indices: np.ndarray) -> Batch:
        """The batch of padded indices, on the mesh."""
        by_user = indices.ndim == 2
        read: dict[tuple[int, int], list[np.ndarray]] = {}

        def shard_rows(at: slice) -> list[np.ndarray]:
            """The leaves of some rows: each part is read once, however many devices hold it."""
            place = at.indices(len(indices))[:2]
            if place not in read:
                mine = indices[slice(*place)]
                present = mine >= 0
                is_padding = ~present.any(axis=1) if by_user else ~present
                data = jax.tree.leaves(jax.tree.map(_canonical, rows(self.source, mine)))
                read[place] = [is_padding, ~present, *data]
            return read[place]

        def placed(leaf: int, shape: tuple[int, ...]) -> jax.Array:
            def part(index: Any) -> np.ndarray:
                return shard_rows(index[0])[leaf]

            return jax.make_array_from_callback(shape, self.layout.sharding, part)

        records = jax.tree.leaves(self.source.record)
        data = [placed(k + 2, (*indices.shape, *x.shape)) for k, x in enumerate(records)]
        is_padding = placed(0, indices.shape[:1])
        return Batch(
            step,
            jax.tree.unflatten(jax.tree.structure(self.source.record), data),
            is_padding,
            placed(1, indices.shape) if by_user else None,
            self.digest(indices, read),
        )

    def digest(self, indices: np.ndarray, read: dict[tuple[int, int], list[np.ndarray]]) -> bytes:
        """Of the records of a step, their numbers and their places; empty without a key."""
        if not self.digest_key:
            return b""
        hashed = hashlib.blake2b(key=self.digest_key, person=b"bevel rows", digest_size=16)
        for place in sorted(read):
            numbers = np.ascontiguousarray(indices[slice(*place)], np.int64)
            for part in (np.asarray(place, np.int64), numbers, *read[place]):
                hashed.update(np.ascontiguousarray(part).view(np.uint8).data)
        return hashed.digest()

    def shapes(self, size: int) -> Batch:
        """A batch of `size` rows, as shapes and where they lie: to compile a step for it."""
        users = isinstance(self.strategy, UserSelectionStrategy)
        inner = (self.strategy.examples_per_user_per_batch,) if users else ()

        def shaped(shape: tuple[int, ...], dtype: Any) -> Any:
            dtype = jax.dtypes.canonicalize_dtype(dtype)
            return jax.ShapeDtypeStruct(shape, dtype, sharding=self.layout.sharding)

        data = jax.tree.map(lambda x: shaped((size, *inner, *x.shape), x.dtype), self.source.record)
        missing = shaped((size, *inner), np.bool_) if users else None
        return Batch(0, data, shaped((size,), np.bool_), missing)


def _canonical(values: np.ndarray) -> np.ndarray:
    """As JAX holds it: 64 bits become 32, unless x64 is on."""
    return values.astype(jax.dtypes.canonicalize_dtype(values.dtype), copy=False)
