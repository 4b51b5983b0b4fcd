"""Reads records from ArrayRecord files, and from a function in a user's file."""

from pathlib import Path
from typing import Any

import numpy as np

from bevel.checks import in_one_line
from bevel.datasets.data_set import DataSpec
from bevel.datasets.labels import declared_labels, labels_of
from bevel.datasets.options import DataTable
from bevel.datasets.prepared import PreparedSource, input_spec
from bevel.datasets.python_file import load_function
from bevel.datasets.split import Part, Users
from bevel.errors import FixArgumentsError, FixDataError
from bevel.training.data import DataSource, source_of

FORM = 'records {"x": ..., "y": ...}'


def read_function(table: DataTable, location: str) -> tuple[DataSpec, Part, Part | None]:
    """The records that a user's function returns, or its pair (training set, test set)."""
    returned = load_function(location, "[data] source")()
    sets = returned if isinstance(returned, tuple) else (returned,)
    if not 1 <= len(sets) <= 2:
        raise FixDataError(
            f"{location} returned {len(sets)} values: return the training set, or a pair of the "
            "training set and the test set."
        )
    parts = [_part(table, records, location) for records in sets]
    spec, train = parts[0]
    if table.user is not None:
        ids = getattr(sets[0], table.user, None)
        if ids is None or np.shape(ids) != (len(train.records),):
            raise FixDataError(
                f"[data] user is {table.user!r}: the training set of {location} needs an "
                f"attribute of this name with {len(train.records)} user ids, one per record."
            )
        train = train._replace(users=Users.of(np.asarray(ids)))
    return spec, train, parts[1][1] if len(parts) == 2 else None


def read_array_records(table: DataTable, files: list[Path]) -> tuple[DataSpec, Part]:
    """The records of ArrayRecord files, decoded by the function that the config names."""
    import grain

    if table.decode is None:
        raise FixDataError(
            f"{files[0]} is an ArrayRecord file, whose records are bytes: write decode = "
            f"'file.py:function' in [data] for a function that turns them into {FORM[8:]}."
        )
    if table.user is not None:
        raise FixArgumentsError(
            "[data] user: bevel does not know the users of ArrayRecord files. Write a function "
            "that returns the records, and set source = 'file.py:function'."
        )
    decode = load_function(table.decode, "[data] decode")
    try:
        records = grain.sources.ArrayRecordDataSource([str(path) for path in files])
    except Exception as error:  # the reader raises RuntimeError and ValueError
        raise FixDataError(
            f"{files[0]} cannot be read as ArrayRecord: {in_one_line(error)}."
        ) from None
    return _part(table, grain.MapDataset.source(records).map(decode), table.decode)


def _part(table: DataTable, records: Any, where: str) -> tuple[DataSpec, Part]:
    """Records of any kind, prepared batch by batch."""
    if isinstance(records, DataSource) or not isinstance(records, dict | tuple | list):
        _check_first(records, where)
    source = source_of(records)
    if not isinstance(source.record, dict) or "x" not in source.record:
        raise FixDataError(f"{where}: records are {in_one_line(source.record)}. Return {FORM}.")
    one = source.record["x"]
    spec = input_spec(table, one.shape, one.dtype, f"x of {where}")
    if table.target == "next token":
        return spec, Part(PreparedSource(source, spec))
    if "y" not in source.record or source.record["y"].shape:
        raise FixDataError(
            f"{where}: the y of a record must be one label, but records are "
            f"{in_one_line(source.record)}. Return {FORM}."
        )
    first = np.asarray(source.read(np.arange(1))["y"])
    labels = declared_labels(labels_of(table), first[:0].astype(float), f"y of {where}")
    spec = labels.described(spec)
    return spec, Part(PreparedSource(source, spec, labels))


def _check_first(records: Any, where: str) -> None:
    """Refuses masked arrays, whose mask would be ignored."""
    if not hasattr(records, "__getitem__") or not len(records):
        return
    first = records[0]
    values = first.values() if isinstance(first, dict) else [first]
    if any(isinstance(value, np.ma.MaskedArray) for value in values):
        raise FixDataError(
            f"{where}: a record holds a masked array, whose mask bevel would ignore. Fill it, as "
            "in array.filled(0), and add the mask as a feature if it matters."
        )
