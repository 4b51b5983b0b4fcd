"""Loads the data set of a config, whatever its format."""

import dataclasses
import glob
from pathlib import Path

from bevel.checks import nearest
from bevel.datasets.arrays import read_arrays
from bevel.datasets.bundled import BUNDLED, read_bundled
from bevel.datasets.data_set import DataSet, DataSpec
from bevel.datasets.image_folder import class_folders, read_images
from bevel.datasets.options import DataTable
from bevel.datasets.records import (
    ARRAY_RECORD,
    array_record_files,
    read_array_records,
    read_function,
)
from bevel.datasets.split import Part, hold_out
from bevel.datasets.table import read_table
from bevel.datasets.table_file import CSV, PARQUET
from bevel.errors import FixDataError

TUNING_FRACTION = 0.2
FORMATS = (
    "'digits', 'breast_cancer', 'sequences', an .npz, .npy, .csv, .parquet or .array_record file, "
    "a folder of images by class or of .npy files, or 'file.py:function'"
)


def data_set(table: DataTable) -> DataSet:
    """The data that a config names. With `tune`, the real test set is not used at all."""
    spec, train, test = _read(table, table.source)
    if table.test is not None:
        if table.test_fraction is not None or test is not None:
            other = "has a test set of its own" if test is not None else "has test_fraction"
            raise FixDataError(f"[data] has test, but also {other}: leave one of them out.")
        # The test set is only measured, so it needs no users.
        test_spec, test, _ = _read(dataclasses.replace(table, user=None), table.test)
        if test_spec != spec:
            raise FixDataError(
                f"[data] test: {table.test} has records of {test_spec}, but {table.source} has "
                f"{spec}. Both must be equal."
            )
    elif test is not None and table.test_fraction is not None:
        raise FixDataError(
            f"[data] has test_fraction, but {table.source} has a test set: leave it out."
        )
    if table.tune:
        if test is None:
            train, _ = hold_out(train, _fraction(table), table.split_seed)
        # Another seed: the records that the same one would choose are gone already.
        train, test = hold_out(train, TUNING_FRACTION, table.split_seed + 1)
    elif test is None:
        train, test = hold_out(train, _fraction(table), table.split_seed)
    user_ids = None if train.users is None else train.users.numbers
    return DataSet(spec, train.records, test.records, user_ids)


def _fraction(table: DataTable) -> float:
    if table.test_fraction is None:
        raise FixDataError(
            f"[data]: {table.source} has no test set. Write test = 'PATH' for one, or "
            "test_fraction = 0.2 to hold out a fifth of the records."
        )
    return table.test_fraction


def _read(table: DataTable, source: str) -> tuple[DataSpec, Part, Part | None]:
    """The training set of a source, and the test set if the source has one."""
    if source in BUNDLED:
        return read_bundled(source)
    if ".py:" in source:
        return read_function(table, source)
    paths = source_files(source)
    first = paths[0]
    if first.is_dir():
        inside = sorted(path for path in first.iterdir() if path.is_file())
        if any(path.suffix == ".npy" for path in inside):
            return read_arrays(table, first)
        if any(path.suffix in ARRAY_RECORD for path in inside):
            return *read_array_records(table, array_record_files(source)), None
        if class_folders(first):
            return read_images(table, first)
        raise FixDataError(
            f"[data] source: the folder {first} holds no images in folders named after classes, no "
            ".npy files and no .array_record files."
        )
    if first.suffix in ARRAY_RECORD:
        return *read_array_records(table, array_record_files(source)), None
    if len(paths) > 1:
        raise FixDataError(f"[data] source {source!r} names {len(paths)} files: name one of them.")
    if first.suffix in (".npz", ".npy"):
        return read_arrays(table, first)
    return *read_table(table, first), None


def source_files(source: str) -> list[Path]:
    """The files of a source that is a path or a pattern. Raises if there are none, or unknown."""
    path = Path(source).expanduser()
    is_pattern = any(mark in source for mark in "*?[") and not path.exists()
    paths = [Path(name) for name in sorted(glob.glob(str(path)))] if is_pattern else [path]
    if not paths or not paths[0].exists():
        near = nearest(source, BUNDLED)
        raise FixDataError(f"[data] source: there is no file {path}{near} Write {FORMATS}.")
    first = paths[0]
    if first.suffix in (".xlsx", ".xls", ".ods"):
        raise FixDataError(f"{first} is a spreadsheet: save the sheet as CSV or Parquet.")
    known = (*CSV, *PARQUET, *ARRAY_RECORD, ".npz", ".npy")
    if first.is_file() and not first.name.endswith(known):
        raise FixDataError(
            f"[data] source: {first} has an unknown format ({first.suffix or 'no suffix'}). Write "
            f"{FORMATS}."
        )
    return paths
