"""Data sets that need no file: a table that ships with scikit-learn, and generated sequences."""

from collections.abc import Callable

import numpy as np

from bevel.datasets.data_set import DataSet, DataSpec
from bevel.training.data import ArraySource

# Ranges of the features of breast_cancer begin at 0. These are their upper ends for the mean, the
# standard error and the worst value, rounded up from the published description of the data set.
_UPPER = {
    "radius": (30, 3, 40), "texture": (40, 5, 50), "perimeter": (200, 25, 260),
    "area": (2600, 600, 4300), "smoothness": (0.2, 0.04, 0.25), "compactness": (0.4, 0.15, 1.1),
    "concavity": (0.5, 0.4, 1.3), "concave points": (0.25, 0.06, 0.3), "symmetry": (0.35, 0.1, 0.7),
    "fractal dimension": (0.1, 0.03, 0.25),
}  # fmt: skip
_TOKENS, _LENGTH, _CLASSES, _SEQUENCES = 64, 24, 4, 3000


def bundled(name: str, tune: bool = False) -> DataSet | None:
    """The bundled data set of this name, or None if there is none.

    With `tune`, the last fifth of the training set takes the place of the test set.
    """
    if name not in _BUNDLED:
        return None
    data = _BUNDLED[name]()
    if not tune:
        return data
    rows = data.train.read(np.arange(len(data.train)))
    return _split(data.spec, rows["x"], rows["y"], test=len(data.train) - len(data.train) * 4 // 5)


def _breast_cancer() -> DataSet:
    """569 tumours with 30 numbers each, in two classes. The last 114, after a shuffle, are the
    test set.
    """
    from sklearn.datasets import load_breast_cancer

    file = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(file.data))
    upper = np.array([_upper(name) for name in file.feature_names])
    x = np.clip(2 * file.data[order] / upper - 1, -1, 1).astype(np.float32)
    spec = DataSpec("table", (x.shape[1],), classes=2)
    return _split(spec, x, file.target[order].astype(np.int32), test=114)


def _upper(name: str) -> float:
    """The upper end for a name such as 'mean radius', 'radius error' or 'worst radius'."""
    feature = next(feature for feature in _UPPER if feature in name)
    mean, error, worst = _UPPER[feature]
    return error if "error" in name else worst if "worst" in name else mean


def _sequences() -> DataSet:
    """3,000 generated sequences of up to 24 tokens, in four classes. The last 500 are the test set.

    Each class prefers other tokens, as topics of a text do. Token 0 is padding.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(0, _CLASSES, _SEQUENCES).astype(np.int32)
    of_class = rng.dirichlet(np.full(_TOKENS - 1, 0.5), _CLASSES)
    shares = 0.4 * of_class + 0.6 / (_TOKENS - 1)
    x = np.stack([rng.choice(_TOKENS - 1, _LENGTH, p=shares[label]) + 1 for label in y])
    lengths = rng.integers(_LENGTH // 2, _LENGTH + 1, _SEQUENCES)
    x = np.where(np.arange(_LENGTH) < lengths[:, None], x, 0).astype(np.int32)
    spec = DataSpec("tokens", (_LENGTH,), "int32", _CLASSES, _TOKENS, padding=0)
    return _split(spec, x, y, test=500)


def _split(spec: DataSpec, x: np.ndarray, y: np.ndarray, test: int) -> DataSet:
    train, held_out = slice(None, -test), slice(-test, None)
    return DataSet(
        spec,
        ArraySource({"x": x[train], "y": y[train]}),
        ArraySource({"x": x[held_out], "y": y[held_out]}),
    )


_BUNDLED: dict[str, Callable[[], DataSet]] = {
    "breast_cancer": _breast_cancer,
    "sequences": _sequences,
}
