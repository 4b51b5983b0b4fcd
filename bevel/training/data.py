"""Random access to a data set: records by their numbers, as rows of arrays.

| what `fit` is given                                      | how it is read                       |
| -------------------------------------------------------- | ------------------------------------ |
| an array, `np.memmap`, or tree of them (dict, tuple, ...) | rows are copied out of the arrays    |
| anything with `__len__` and `__getitem__` (Grain sources) | record by record, in a few threads   |
| the same with Grain's `__getitems__`                      | all records of a batch in one call   |

Padding is not a record: rows of index -1 are zeros, and nothing is read for them.
"""

import concurrent.futures
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from bevel.batch_selection import ExamplesByUser
from bevel.errors import FixArgumentsError, FixDataError

PyTree = Any
READERS = 8


class DataSource(Protocol):
    """A data set: how many records, what one is like, and any of them."""

    record: PyTree
    """One record: a tree of `jax.ShapeDtypeStruct`."""

    def __len__(self) -> int: ...

    def read(self, numbers: np.ndarray) -> PyTree:
        """Records, stacked: every number is at least 0 and below the length."""


def source_of(data: Any) -> DataSource:
    """What `fit` was given, as a source. Raises for what could be read in two ways."""
    if isinstance(data, ArraySource | RecordSource):
        return data
    if isinstance(data, list):
        raise FixArgumentsError(
            "the data is a list, which could be records or columns. Write a tuple or dict of "
            "arrays for columns; for records, an object with __len__ and __getitem__, such as "
            "np.asarray(records) or a Grain source."
        )
    leaves = jax.tree.leaves(data, is_leaf=_holds_records)
    if leaves and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        return ArraySource(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, dict):
        return RecordSource(data)
    raise FixArgumentsError(
        f"the data is a {type(data).__name__}: give arrays with one row per record (an array, or a "
        "tuple or dict of them), or an object with __len__ and __getitem__. A stream cannot be "
        "sampled: every record must have its chance in every batch."
    )


def _holds_records(x: Any) -> bool:
    """Whether something is an array or a source, not a tree of them."""
    iterable = hasattr(x, "__getitem__") or hasattr(x, "__iter__")
    return iterable and not isinstance(x, dict | tuple | list)


class ArraySource:
    """Columns in memory or on disk (`np.memmap`): one row per record."""

    def __init__(self, columns: PyTree) -> None:
        # A memmap stays one: only the rows of a batch are ever read.
        self.columns = jax.tree.map(np.asanyarray, columns)
        lengths = {column.shape[:1] for column in jax.tree.leaves(self.columns)}
        if len(lengths) != 1 or () in lengths:
            shapes = jax.tree.map(lambda column: column.shape, self.columns)
            raise FixArgumentsError(
                f"the arrays of the data have shapes {shapes}: each needs one row per record."
            )
        self._length = lengths.pop()[0]
        self.record = jax.tree.map(
            lambda column: jax.ShapeDtypeStruct(column.shape[1:], column.dtype), self.columns
        )

    def __len__(self) -> int:
        return self._length

    def read(self, numbers: np.ndarray) -> PyTree:
        def copied() -> PyTree:
            return jax.tree.map(lambda column: np.asarray(column[numbers]), self.columns)

        return _reading(copied, numbers.tolist())


class RecordSource:
    """Any object with `__len__` and `__getitem__`, or Grain's `__getitems__`.

    The first record says what all are like; one that differs in shape or dtype is an error.
    """

    def __init__(self, records: Any, readers: int = READERS) -> None:
        self.records = records
        self._length = len(records)
        if not self._length:
            raise FixDataError("the data set is empty: there is nothing to learn from.")
        self._pool = concurrent.futures.ThreadPoolExecutor(readers, "bevel-read")
        first = jax.tree.map(np.asarray, self._record(0))
        self.record = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), first)

    def __len__(self) -> int:
        return self._length

    def read(self, numbers: np.ndarray) -> PyTree:
        wanted = numbers.tolist()
        if hasattr(self.records, "__getitems__"):
            read: Sequence[Any] = _reading(lambda: self.records.__getitems__(wanted), wanted)
            if len(read) != len(wanted):
                raise FixDataError(f"asked for {len(wanted)} records, the source gave {len(read)}.")
        else:
            read = list(self._pool.map(self._record, wanted))
        structure: Any = jax.tree.structure(self.record)
        columns = [np.empty((len(wanted), *x.shape), x.dtype) for x in jax.tree.leaves(self.record)]
        for row, (number, record) in enumerate(zip(wanted, read, strict=True)):
            values = [np.asarray(x) for x in jax.tree.leaves(record)]
            same = structure == jax.tree.structure(record) and all(
                (x.shape, x.dtype) == (column.shape[1:], column.dtype)
                for x, column in zip(values, columns, strict=True)
            )
            if not same:
                raise FixDataError(
                    f"record {number} is not like record 0, which is {_shown(self.record)}: it is "
                    f"{_shown(jax.tree.unflatten(jax.tree.structure(record), values))}. Make all "
                    "records of one shape and dtype."
                )
            for column, value in zip(columns, values, strict=True):
                column[row] = value
        return jax.tree.unflatten(structure, columns)

    def _record(self, number: int) -> Any:
        return _reading(lambda: self.records[number], [number])


def _reading(read: Callable[[], Any], numbers: list[int]) -> Any:
    """What `read` gives; its error, if it has one, with the records that it was for."""
    try:
        return read()
    except Exception as error:
        which = f"record {numbers[0]}" if len(numbers) == 1 else f"one of {len(numbers)} records"
        raise FixDataError(
            f"{which} could not be read ({type(error).__name__}: {error}). No step was taken "
            "without it: mend the data, and start again to go on from here."
        ) from error


def _shown(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: f"{np.dtype(x.dtype).name}{list(x.shape)}", tree)


def rows(source: DataSource, indices: np.ndarray) -> PyTree:
    """The records of `indices`, of any shape, as arrays of that shape and the record's.

    Where an index is -1, zeros: no record is read for it.
    """
    flat = indices.ravel()
    present = flat >= 0
    read = source.read(flat[present])

    def spread(values: np.ndarray) -> np.ndarray:
        out = np.zeros((flat.size, *values.shape[1:]), values.dtype)
        out[present] = values
        return out.reshape(*indices.shape, *values.shape[1:])

    return jax.tree.map(spread, read)


def check_length(source: DataSource, expected: int | None, unit: str = "example") -> None:
    """Raises unless the data set has as many records as the plan was made for."""
    found = len(source)
    if expected is not None and found != expected:
        raise FixDataError(
            f"the data set has {found} {unit}s, and the plan was made for {expected}: sampling "
            "probability and delta belong to that number. Give the data set that the plan is for, "
            f"or make a plan with num_examples={found} and begin another run."
        )


@dataclasses.dataclass(frozen=True)
class Fingerprinting:
    """How much of a data set its fingerprint covers: all of a small one, a sample of a large one.

    A fingerprint finds a data set that was exchanged. Of a large one it reads records that the key
    chooses, so a change of a few others goes unseen; that steps are run again on the very same rows
    is proven by the digests of those rows (`training.releases`), not by this.
    """

    most_bytes: int = 1 << 26
    sample: int = 1024


IN_ARRAYS = Fingerprinting(most_bytes=1 << 28)  # which are read faster than records


def fingerprint(
    source: DataSource, key: bytes, population: Any = None, how: Fingerprinting | None = None
) -> str:
    """A keyed hash of a data set. Without the secret key it tells nothing of the data.

    Where users are protected, `population` says which examples are whose, and is part of it. A data
    set that has a `fingerprint` of its own (a text, or a function that returns one) is
    known by that, by its length and by the type of its records.
    """
    offered = _offered_fingerprint(source)
    hashed = hashlib.blake2b(key=key, person=b"bevel data set", digest_size=32)
    hashed.update(f"{len(source)} {_shown(source.record)} {offered}".encode())
    if isinstance(population, ExamplesByUser):
        for column in (population.user_ids, *dataclasses.astuple(population.examples)):
            values = np.asarray(column)
            hashed.update((values.astype(str) if values.dtype == object else values).tobytes())
    if offered is None:
        usual = IN_ARRAYS if isinstance(source, ArraySource) else Fingerprinting()
        for numbers in numbers_to_hash(source, key, how or usual):
            for column in jax.tree.leaves(source.read(numbers)):
                hashed.update(np.ascontiguousarray(column).tobytes())
    return hashed.hexdigest()


def numbers_to_hash(source: DataSource, key: bytes, how: Fingerprinting) -> Iterator[np.ndarray]:
    """All records of a small data set, a few thousand at a time; some of a large one."""
    count = len(source)
    record = sum(np.dtype(x.dtype).itemsize * int(np.prod(x.shape)) for x in _leaves_of(source))
    if count * max(1, record) <= how.most_bytes:
        yield from (np.arange(at, min(at + 4096, count)) for at in range(0, count, 4096))
        return
    seed = int.from_bytes(hashlib.blake2b(b"sample", key=key, digest_size=16).digest(), "little")
    yield np.unique(np.random.default_rng(seed).integers(0, count, how.sample))


def _offered_fingerprint(source: DataSource) -> str | None:
    """What the data set says that it is, if it does."""
    records = getattr(source, "records", None)
    offered = getattr(records, "fingerprint", None)
    offered = offered() if callable(offered) else offered
    if offered is not None and not isinstance(offered, str):
        raise FixArgumentsError(
            f"the data set's fingerprint is a {type(offered).__name__}: give a text that changes "
            "whenever the data does, or no fingerprint at all."
        )
    return offered


def _leaves_of(source: DataSource) -> list[Any]:
    return jax.tree.leaves(source.record)
