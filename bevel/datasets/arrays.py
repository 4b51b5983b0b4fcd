"""Reads .npz files, .npy files and folders of .npy files."""

from pathlib import Path

import numpy as np

from bevel.checks import nearest
from bevel.datasets.array_files import arrays_in
from bevel.datasets.data_set import DataSpec
from bevel.datasets.labels import check_missing, declared_labels, labels_of
from bevel.datasets.options import DataTable
from bevel.datasets.prepared import PreparedSource, input_spec
from bevel.datasets.split import Part, Users
from bevel.errors import FixDataError
from bevel.training.data import ArraySource


def read_arrays(table: DataTable, path: Path) -> tuple[DataSpec, Part, Part | None]:
    """The training set of a file, and the test set if the file has one.

    x and y are the arrays that the config names. By default they are `x_train` and `y_train`, or
    `x` and `y`, and the test set is `x_test` and `y_test`.
    """
    arrays = arrays_in(path)
    x_name = table.x or _first(arrays, ("x_train", "x")) or _only(arrays)
    y_name = table.y or _first(arrays, ("y_train", "y"))
    spec, train = _part(table, arrays, x_name, y_name, table.user, path)
    x_test = table.x_test or _first(arrays, ("x_test",))
    if x_test is None or table.test is not None:
        return spec, train, None
    y_test = table.y_test or _first(arrays, ("y_test",))
    test_spec, test = _part(table, arrays, x_test, y_test, None, path)
    if test_spec != spec:
        raise FixDataError(
            f"{path}: records of {x_name} have shape {spec.shape}, and those of {x_test} have "
            f"shape {test_spec.shape}. Both must be equal."
        )
    return spec, train, test


def _part(
    table: DataTable,
    arrays: dict[str, np.ndarray],
    x_name: str | None,
    y_name: str | None,
    user_name: str | None,
    path: Path,
) -> tuple[DataSpec, Part]:
    x = _named(arrays, x_name, "x", path)
    if x.ndim == 0:
        raise FixDataError(f"{path}: {x_name} is one number. Store one row per record.")
    if not len(x):
        raise FixDataError(f"{path}: {x_name} is empty. Store at least one record.")
    spec = input_spec(table, x.shape[1:], x.dtype, f"{path}: {x_name}")
    missing = np.zeros(len(x), bool)
    if table.target == "next token":
        y = np.zeros(len(x), np.int32)
    else:
        values = _named(arrays, y_name, "y", path)
        if values.shape != x.shape[:1]:
            raise FixDataError(
                f"{path}: {x_name} has shape {x.shape} and {y_name} has shape {values.shape}. "
                "Store one label per record, in shape (records,)."
            )
        where = f"{path}: {y_name}"
        values = np.asarray(values)
        labels = declared_labels(labels_of(table), values, where)
        y, missing = labels.encode(values, where)
        check_missing(missing, table.drop_missing, where)
        spec = labels.described(spec)
    users = None
    if user_name is not None:
        ids = _named(arrays, user_name, "user", path)
        if ids.shape != x.shape[:1] or ids.dtype.kind not in "iuUS":
            raise FixDataError(
                f"{path}: {user_name} has shape {ids.shape} and dtype {ids.dtype}. Store one user "
                f"id per record, an integer or a text, in shape ({len(x)},)."
            )
        users = Users.of(np.asarray(ids))
    part = Part(PreparedSource(ArraySource({"x": x, "y": y}), spec), users)
    return spec, part.take(np.flatnonzero(~missing)) if missing.any() else part


def _named(arrays: dict[str, np.ndarray], name: str | None, key: str, path: Path) -> np.ndarray:
    if name is None or name not in arrays:
        wanted = (
            f"no array {name!r}{nearest(name, arrays)}" if name else f"no {key}_train or {key}."
        )
        raise FixDataError(
            f"{path} has {wanted} It holds {', '.join(arrays) or 'no arrays'}: write "
            f"{key} = 'NAME' in [data]."
        )
    return arrays[name]


def _first(arrays: dict[str, np.ndarray], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in arrays), None)


def _only(arrays: dict[str, np.ndarray]) -> str | None:
    return next(iter(arrays)) if len(arrays) == 1 else None
