"""Reads records from ArrayRecord files, and from a function in a user's file."""

import glob
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

ARRAY_RECORD = (".array_record", ".arrayrecord")
FEW = 100
FORM = 'records {"x": ..., "y": ...}'


def read_function(table: DataTable, location: str) -> tuple[DataSpec, Part, Part | None]:
    """The records that a user's function returns, or its pair (training set, test set)."""
    returned = _returned(location)
    parts = [_part(table, _source(records, location), location) for records in returned]
    spec, train = parts[0]
    if table.user is not None:
        ids = getattr(returned[0], table.user, None)
        if ids is None or np.shape(ids) != (len(train.records),):
            raise FixDataError(
                f"[data] user is {table.user!r}: the training set of {location} needs an attribute "
                f"of this name with {len(train.records)} user ids, one per record."
            )
        train = train._replace(users=Users.of(np.asarray(ids)))
    return spec, train, parts[1][1] if len(parts) == 2 else None


def read_array_records(table: DataTable, files: list[Path]) -> tuple[DataSpec, Part]:
    """The records of ArrayRecord files, decoded by the function that the config names."""
    if table.user is not None:
        raise FixArgumentsError(
            "[data] user: bevel does not know the users of ArrayRecord files. Write a function "
            "that returns the records, and set source = 'file.py:function'."
        )
    return _part(table, _array_records(table, files), str(table.decode))


def record_sets(table: DataTable) -> list[DataSource]:
    """The training set, and the test set if there is one, as they are before any preparation."""
    if ".py:" in table.source:
        return [_source(records, table.source) for records in _returned(table.source)]
    return [_array_records(table, array_record_files(table.source))]


def array_record_files(source: str) -> list[Path]:
    """The ArrayRecord files of a path, a pattern or a folder."""
    paths = [Path(name) for name in sorted(glob.glob(source))]
    if len(paths) == 1 and paths[0].is_dir():
        paths = sorted(paths[0].iterdir())
    return [path for path in paths if path.suffix in ARRAY_RECORD]


def _returned(location: str) -> tuple[Any, ...]:
    returned = load_function(location, "[data] source").function()
    sets = returned if isinstance(returned, tuple) else (returned,)
    if not 1 <= len(sets) <= 2:
        raise FixDataError(
            f"{location} returned {len(sets)} values: return the training set, or a pair of the "
            "training set and the test set."
        )
    return sets


def _array_records(table: DataTable, files: list[Path]) -> DataSource:
    import grain

    if table.decode is None:
        raise FixDataError(
            f"{files[0]} is an ArrayRecord file, whose records are bytes: write decode = "
            f"'file.py:function' in [data] for a function that turns them into {FORM[8:]}."
        )
    decode = load_function(table.decode, "[data] decode").function
    try:
        records = grain.sources.ArrayRecordDataSource([str(path) for path in files])
        length = len(records)
    except Exception as error:  # the reader raises errors of many kinds
        raise FixDataError(
            f"{files[0]} cannot be read as ArrayRecord: {in_one_line(error)}."
        ) from None
    if not length:
        raise FixDataError(f"{files[0]} has no records.")
    return _source(grain.MapDataset.source(records).map(decode), table.decode)


def _source(records: Any, where: str) -> DataSource:
    """Records of any kind as a source of {"x": ...}. Refuses masks, which would be ignored."""
    first = records[0] if hasattr(records, "__getitem__") and not isinstance(records, dict) else 0
    values = records if isinstance(records, dict) else first if isinstance(first, dict) else {}
    if any(isinstance(value, np.ma.MaskedArray) for value in values.values()):
        raise FixDataError(
            f"{where}: the data has a masked array, whose mask bevel would ignore. Fill it, as in "
            "array.filled(0), and add the mask as a feature if it matters."
        )
    source = source_of(records)
    if not isinstance(source.record, dict) or "x" not in source.record:
        raise FixDataError(f"{where}: records are {in_one_line(source.record)}. Return {FORM}.")
    return source


def _part(table: DataTable, source: DataSource, where: str) -> tuple[DataSpec, Part]:
    """Records of any kind, prepared batch by batch."""
    one = source.record["x"]
    spec = input_spec(table, one.shape, one.dtype, f"x of {where}")
    if table.target == "next token":
        return spec, Part(PreparedSource(source, spec))
    if "y" not in source.record or source.record["y"].shape:
        raise FixDataError(
            f"{where}: the y of a record must be one label, but records are "
            f"{in_one_line(source.record)}. Return {FORM}."
        )
    first = np.asarray(source.read(np.arange(min(len(source), FEW)))["y"])
    labels = declared_labels(labels_of(table), first, f"y of {where}")
    spec = labels.described(spec)
    return spec, Part(PreparedSource(source, spec, labels))
