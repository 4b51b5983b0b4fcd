"""The handwritten digits that ship with scikit-learn, which are public."""

import numpy as np

from bevel.datasets.data_set import DataSpec
from bevel.datasets.split import Part
from bevel.training.data import ArraySource

TEST_RECORDS = 360


def read_digits() -> tuple[DataSpec, Part, Part]:
    """1,797 images of 8 x 8 pixels. The last 360 are the test set.

    scikit-learn sorts them by writer, so they are shuffled first, always in the same order.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1), y[order].astype(np.int32)
    train, test = slice(None, -TEST_RECORDS), slice(-TEST_RECORDS, None)
    parts = (Part(ArraySource({"x": x[rows], "y": y[rows]})) for rows in (train, test))
    return DataSpec("image", (8, 8, 1), classes=10), next(parts), next(parts)
