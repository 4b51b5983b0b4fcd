"""Random access to a data set: reads records by index, as rows of arrays.

| data passed to `fit`                                      | how it is read                       |
| --------------------------------------------------------- | ------------------------------------ |
| an array, `np.memmap`, or tree of them (dict, tuple, ...) | rows are copied out of the arrays    |
| an object with `__len__` and `__getitem__` (Grain source) | one record at a time, in threads     |
| the same with Grain's `__getitems__`                      | all records of a batch in one call   |

Index -1 means padding: the row is filled with zeros and no record is read.
"""

import concurrent.futures
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from bevel.batch_selection import ExamplesByUser
from bevel.checks import in_one_line, without_mask
from bevel.errors import BevelError, FixArgumentsError, FixDataError
from bevel.precision import overflowing
from bevel.training.mapped_files import check_not_shorter

PyTree = Any
READER_THREADS = 8
_HASHED_ENTRIES = 1 << 20  # of the users' arrays at a time, which may be memory-mapped


@runtime_checkable
class DataSource(Protocol):
    """A data set with random access to its records."""

    record: PyTree
    """The shape and dtype of one record, as a tree of `jax.ShapeDtypeStruct`."""

    def __len__(self) -> int: ...

    def read(self, indices: np.ndarray) -> PyTree:
        """Reads and stacks the records at these indices, all from 0 to `len(self) - 1`."""


def source_of(data: Any) -> DataSource:
    """Wraps the data passed to `fit`. Raises if it is ambiguous or has no random access."""
    if isinstance(data, DataSource):
        return data
    if isinstance(data, list):
        raise FixArgumentsError(
            "the data is a list, which could be a list of records or of columns. For columns, "
            "pass a tuple or dict of arrays. For records, pass an object with __len__ and "
            "__getitem__, such as np.asarray(records) or a Grain source."
        )
    if isinstance(data, dict | tuple):
        columns = jax.tree_util.tree_leaves_with_path(data, is_leaf=_is_list_of_numbers)
        lists = [jax.tree_util.keystr(path) for path, x in columns if _is_list_of_numbers(x)]
        if lists:
            raise FixArgumentsError(
                f"data{lists[0]} is a list: pass an array with one row per record, such as "
                f"np.asarray(data{lists[0]})."
            )
    leaves = jax.tree.leaves(data, is_leaf=_holds_records)
    if leaves and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        return ArraySource(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, dict):
        return RecordSource(data)
    raise FixArgumentsError(
        f"the data is a {type(data).__name__}. Pass arrays with one row per record (an array, or a "
        "tuple or dict of them), or an object with __len__ and __getitem__. A stream cannot be "
        "sampled, because sampling needs random access to all records. Store it in a format that "
        "has it, such as ArrayRecord (grain.sources.ArrayRecordDataSource)."
    )


def _holds_records(x: Any) -> bool:
    """Returns whether `x` is an array or a source, rather than a tree of them."""
    iterable = hasattr(x, "__getitem__") or hasattr(x, "__iter__")
    return iterable and not isinstance(x, dict | tuple | list)


def _is_list_of_numbers(x: Any) -> bool:
    numbers = bool | int | float | str
    return isinstance(x, list) and all(isinstance(leaf, numbers) for leaf in jax.tree.leaves(x))


class ArraySource:
    """Columns in memory or on disk (`np.memmap`): one row per record."""

    def __init__(self, columns: PyTree) -> None:
        for path, column in jax.tree_util.tree_leaves_with_path(columns):
            without_mask(f"data{jax.tree_util.keystr(path)}", column)
        # asanyarray keeps a memmap, so that only the rows of a batch are read from disk.
        self.columns = jax.tree.map(np.asanyarray, columns)
        lengths = {column.shape[:1] for column in jax.tree.leaves(self.columns)}
        if len(lengths) != 1 or () in lengths:
            shapes = jax.tree.map(lambda column: column.shape, self.columns)
            raise FixArgumentsError(
                f"the data has arrays of shapes {shapes}. Each must have one row per record, so "
                "all first dimensions must be equal."
            )
        _check_dtypes(self.columns)
        self._length = lengths.pop()[0]
        self.record = jax.tree.map(
            lambda column: jax.ShapeDtypeStruct(column.shape[1:], column.dtype), self.columns
        )

    def __len__(self) -> int:
        return self._length

    def read(self, indices: np.ndarray) -> PyTree:
        def copy_rows() -> PyTree:
            for column in jax.tree.leaves(self.columns):
                check_not_shorter(column)
            return jax.tree.map(lambda column: np.asarray(column[indices]), self.columns)

        return _call_reader(copy_rows, indices.tolist())


class RecordSource:
    """Any object with `__len__` and `__getitem__`, or Grain's `__getitems__`.

    All records must have the structure, shapes and dtypes of the first one.
    """

    def __init__(self, records: Any) -> None:
        self.records = records
        self._length = len(records)
        if not self._length:
            raise FixDataError("the data set is empty: pass at least one record.")
        self._pool = concurrent.futures.ThreadPoolExecutor(READER_THREADS, "bevel-read")
        first = jax.tree.map(np.asarray, self._record(0))
        _check_dtypes(first, " of record 0")
        self.record = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), first)

    def __len__(self) -> int:
        return self._length

    def read(self, indices: np.ndarray) -> PyTree:
        wanted = indices.tolist()
        if hasattr(self.records, "__getitems__"):
            read: Sequence[Any] = _call_reader(lambda: self.records.__getitems__(wanted), wanted)
            if len(read) != len(wanted):
                raise FixDataError(
                    f"__getitems__ returned {len(read)} records, but {len(wanted)} were requested."
                )
        else:
            read = list(self._pool.map(self._record, wanted))
        structure: Any = jax.tree.structure(self.record)
        columns = [np.empty((len(wanted), *x.shape), x.dtype) for x in jax.tree.leaves(self.record)]
        for row, (index, record) in enumerate(zip(wanted, read, strict=True)):
            values = [np.asarray(_unmasked(x, index)) for x in jax.tree.leaves(record)]
            same = structure == jax.tree.structure(record) and all(
                (x.shape, x.dtype) == (column.shape[1:], column.dtype)
                for x, column in zip(values, columns, strict=True)
            )
            if not same:
                raise FixDataError(
                    f"record {index} is "
                    f"{_describe(jax.tree.unflatten(jax.tree.structure(record), values))}, but "
                    f"record 0 is {_describe(self.record)}. All records must have the same "
                    "structure, shapes and dtypes."
                )
            for column, value in zip(columns, values, strict=True):
                column[row] = value
        return jax.tree.unflatten(structure, columns)

    def _record(self, index: int) -> Any:
        record = _call_reader(lambda: self.records[index], [index])
        return jax.tree.map(lambda x: _unmasked(x, index), record)


def _call_reader(read: Callable[[], Any], indices: list[int]) -> Any:
    """Calls `read`. If it raises, the error names the records that were being read."""
    try:
        return read()
    except Exception as error:
        which = f"record {indices[0]}" if len(indices) == 1 else f"one of {len(indices)} records"
        told = isinstance(error, BevelError)  # then its message is a sentence for people
        why = f": {error}" if told else f" ({type(error).__name__}: {in_one_line(error)})."
        raise FixDataError(
            f"{which} could not be read{why} No step was taken without it. Repair the data, then "
            "start again to resume the run."
        ) from error


def _check_dtypes(arrays: PyTree, of: str = "") -> None:
    """Raises for arrays that do not hold numbers."""
    for path, array in jax.tree_util.tree_leaves_with_path(arrays):
        # Objects, text, times and structured records.
        if array.dtype.kind in "OSUMm" or array.dtype.names:
            raise FixArgumentsError(
                f"data{jax.tree_util.keystr(path)}{of} has dtype {array.dtype}, but JAX computes "
                "with numbers. Encode it, as in np.unique(labels, return_inverse=True)[1]."
            )


def _unmasked(value: Any, index: int) -> Any:
    return without_mask(f"an array of record {index}", value)


def _check_kept(columns: PyTree) -> None:
    """Raises if JAX would wrap integers of a batch that do not fit into 32 bits."""
    for path, column in jax.tree_util.tree_leaves_with_path(columns):
        changed = overflowing(np.asarray(column))
        if changed is not None:
            raise FixDataError(
                f"data{jax.tree_util.keystr(path)} has the value {changed}, which does not fit "
                "into 32 bits: JAX would silently change it. Encode it, as in np.unique(labels, "
                "return_inverse=True)[1], or call jax.config.update('jax_enable_x64', True)."
            )


def _describe(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: f"{np.dtype(x.dtype).name}{list(x.shape)}", tree)


def rows(source: DataSource, indices: np.ndarray) -> PyTree:
    """Reads the records at `indices`, which may have any shape, as arrays of `indices`' shape.

    Rows with index -1 are zeros, and no record is read for them. Records are read in increasing
    order, which is faster on disk.
    """
    flat = indices.ravel()
    order = np.argsort(flat, kind="stable")
    present = order[np.count_nonzero(flat < 0) :]
    read = source.read(flat[present])
    _check_kept(read)

    def fill_rows(values: np.ndarray) -> np.ndarray:
        out = np.zeros((flat.size, *values.shape[1:]), values.dtype)
        out[present] = values
        return out.reshape(*indices.shape, *values.shape[1:])

    return jax.tree.map(fill_rows, read)


def check_length(source: Sized, expected: int | None, unit: str = "example") -> None:
    """Raises unless the data set has as many records as the plan was made for."""
    length = len(source)
    if expected is not None and length != expected:
        raise FixDataError(
            f"the data set has {length} {unit}s, but the plan was made for {expected}, which its "
            "sampling probability and delta depend on. Pass the data set of the plan, or make a "
            f"plan with num_examples={length} and start a new run."
        )


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How much of a data set its fingerprint covers: all records, or a sample above `max_bytes`.

    A fingerprint detects that a data set was replaced. For a large data set it covers a sample of
    records that the key determines, so it can miss a change of a few other records. That steps are
    run again on exactly the same rows is verified by the digests of these rows instead
    (`training.releases`).
    """

    max_bytes: int = 1 << 26
    sample_size: int = 1024


ARRAY_COVERAGE = Coverage(max_bytes=1 << 28)  # arrays are read faster than records


def fingerprint(
    source: DataSource, key: bytes, population: Any = None, coverage: Coverage | None = None
) -> str:
    """Returns a keyed hash of a data set, which reveals nothing about it without the secret key.

    If users are protected, `population` maps users to examples and is hashed too. If the data set
    has a `fingerprint` attribute (a string, or a function that returns one), this string, the
    number of records and their type are hashed instead of the records.
    """
    provided = _provided_fingerprint(source)
    hashed = hashlib.blake2b(key=key, person=b"bevel data set", digest_size=32)
    hashed.update(f"{len(source)} {_describe(source.record)} {provided}".encode())
    if isinstance(population, ExamplesByUser):
        for column in (population.user_ids, population.members, population.bounds):
            hashed.update(b"|")
            entries = np.empty(0) if column is None else column
            for part in range(0, len(entries), _HASHED_ENTRIES):
                values = np.asarray(entries[part : part + _HASHED_ENTRIES])
                hashed.update((values.astype(str) if values.dtype == object else values).tobytes())
    if provided is None:
        default = ARRAY_COVERAGE if isinstance(source, ArraySource) else Coverage()
        for indices in indices_to_hash(source, key, coverage or default):
            for column in jax.tree.leaves(source.read(indices)):
                hashed.update(np.ascontiguousarray(column).tobytes())
    return hashed.hexdigest()


def indices_to_hash(source: DataSource, key: bytes, coverage: Coverage) -> Iterator[np.ndarray]:
    """Yields all indices of a small data set in chunks, or a keyed sample of a large one."""
    count = len(source)
    leaves = jax.tree.leaves(source.record)
    record_bytes = sum(np.dtype(x.dtype).itemsize * int(np.prod(x.shape)) for x in leaves)
    if count * max(1, record_bytes) <= coverage.max_bytes:
        yield from (np.arange(k, min(k + 4096, count)) for k in range(0, count, 4096))
        return
    seed = int.from_bytes(hashlib.blake2b(b"sample", key=key, digest_size=16).digest(), "little")
    yield np.unique(np.random.default_rng(seed).integers(0, count, coverage.sample_size))


def _provided_fingerprint(source: DataSource) -> str | None:
    """Returns the `fingerprint` of the user's data set, or None if it has none."""
    provided = getattr(getattr(source, "records", None), "fingerprint", None)
    provided = provided() if callable(provided) else provided
    if provided is not None and not isinstance(provided, str):
        raise FixArgumentsError(
            f"the data set's fingerprint is a {type(provided).__name__}. It must be a string that "
            "changes whenever the data changes. Without the attribute, bevel hashes the records."
        )
    return provided
