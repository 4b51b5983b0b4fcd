"""Loads the data set of a config: scikit-learn's digits, or an .npz file."""

import zipfile
from pathlib import Path

import numpy as np

from bevel.checks import nearest
from bevel.datasets.bundled import bundled
from bevel.datasets.data_set import DataSet, DataSpec
from bevel.datasets.options import DataTable
from bevel.errors import FixDataError
from bevel.training.data import ArraySource

NAMES = ("x_train", "y_train", "x_test", "y_test")


def data_set(config: DataTable) -> DataSet:
    """The data that a config names. With `tune`, the real test set is not used at all."""
    if (found := bundled(config.source, config.tune)) is not None:
        return found
    arrays = _digits() if config.source == "digits" else _from_file(Path(config.source))
    if config.tune:
        cut = len(arrays["x_train"]) * 4 // 5
        arrays = {
            f"{axis}_{part}": arrays[f"{axis}_train"][rows]
            for part, rows in (("train", slice(cut)), ("test", slice(cut, None)))
            for axis in "xy"
        }
    classes = 1 + int(max(arrays["y_train"].max(), arrays["y_test"].max()))
    shape = arrays["x_train"].shape[1:]
    spec = DataSpec("image" if len(shape) == 3 else "table", shape, classes=classes)
    train, test = (
        ArraySource({"x": arrays[f"x_{part}"], "y": arrays[f"y_{part}"]})
        for part in ("train", "test")
    )
    return DataSet(spec, train, test)


def _digits() -> dict[str, np.ndarray]:
    """The 1,797 images of 8 x 8 digits that ship with scikit-learn. The last 360 are the test set.

    scikit-learn sorts them by writer, so they are shuffled first, always in the same order.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1), y[order].astype(np.int32)
    return {"x_train": x[:-360], "y_train": y[:-360], "x_test": x[-360:], "y_test": y[-360:]}


def _from_file(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. uint8 values are divided by 255; images get a channel axis."""
    if not path.exists():
        near = nearest(str(path), ["digits"])
        raise FixDataError(
            f"[data] source: there is no file {path}{near} Write 'digits', or the path of an .npz "
            "file."
        )
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files if name in NAMES}
    except (ValueError, zipfile.BadZipFile, EOFError, AttributeError) as error:
        raise FixDataError(f"{path} cannot be read as an .npz file: {error}.") from None
    missing = [name for name in NAMES if name not in arrays]
    if missing:
        raise FixDataError(f"{path} has no {', '.join(missing)}: it needs {', '.join(NAMES)}.")
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if len(x) != len(y) or len(x) == 0 or y.ndim != 1:
            raise FixDataError(
                f"{path}: x_{part} has shape {x.shape} and y_{part} has shape {y.shape}. Store one "
                "label per example, in shape (examples,), and at least one example."
            )
        if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
            raise FixDataError(f"{path}: y_{part} must hold class numbers, integers from 0 up.")
        if x.dtype == np.uint8:
            x = x.astype(np.float32) / 255
        arrays[f"x_{part}"] = (x[..., None] if x.ndim == 3 else x).astype(np.float32)
        arrays[f"y_{part}"] = y.astype(np.int32)
    return arrays
