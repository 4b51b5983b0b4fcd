"""Data sets that need no file: two that ship with scikit-learn, and generated sequences."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from bevel.datasets.data_set import DataSpec
from bevel.datasets.split import Part
from bevel.training.data import ArraySource

# Ranges of the features of breast_cancer begin at 0. These are their upper ends for the mean, the
# standard error and the worst value, rounded up from the published description of the data set.
_UPPER = {
    "radius": (30, 3, 40), "texture": (40, 5, 50), "perimeter": (200, 25, 260),
    "area": (2600, 600, 4300), "smoothness": (0.2, 0.04, 0.25), "compactness": (0.4, 0.15, 1.1),
    "concavity": (0.5, 0.4, 1.3), "concave points": (0.25, 0.06, 0.3), "symmetry": (0.35, 0.1, 0.7),
    "fractal dimension": (0.1, 0.03, 0.25),
}  # fmt: skip
Bundled: TypeAlias = tuple[DataSpec, np.ndarray, np.ndarray, int]
"""The description, x, y, and how many of the last records are the test set."""
_TOKENS, _LENGTH, _CLASSES, _SEQUENCES = 64, 24, 4, 3000


def read_bundled(name: str) -> tuple[DataSpec, Part, Part]:
    """The training set and the test set of a name in `BUNDLED`."""
    spec, x, y, test = BUNDLED[name]()
    parts = (
        ArraySource({"x": x[rows], "y": y[rows]}) for rows in (slice(-test), slice(-test, None))
    )
    train, held_out = map(Part, parts)
    return spec, train, held_out


def _digits() -> Bundled:
    """1,797 images of 8 x 8 pixels of handwritten digits. The last 360 are the test set.

    scikit-learn sorts them by writer, so they are shuffled first, always in the same order.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1), y[order].astype(np.int32)
    return DataSpec("image", (8, 8, 1), classes=10), x, y, 360


def _breast_cancer() -> Bundled:
    """569 tumours with 30 numbers each, in two classes. The last 114, after a shuffle, are the
    test set.
    """
    from sklearn.datasets import load_breast_cancer

    file = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(file.data))
    upper = np.array([_upper(name) for name in file.feature_names])
    x = np.clip(2 * file.data[order] / upper - 1, -1, 1).astype(np.float32)
    spec = DataSpec("table", (x.shape[1],), classes=2)
    return spec, x, file.target[order].astype(np.int32), 114


def _upper(name: str) -> float:
    """The upper end for a name such as 'mean radius', 'radius error' or 'worst radius'."""
    feature = next(feature for feature in _UPPER if feature in name)
    mean, error, worst = _UPPER[feature]
    return error if "error" in name else worst if "worst" in name else mean


def _sequences() -> Bundled:
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
    return spec, x, y, 500


BUNDLED: dict[str, Callable[[], Bundled]] = {
    "digits": _digits,
    "breast_cancer": _breast_cancer,
    "sequences": _sequences,
}
