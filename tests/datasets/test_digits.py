"""The digits are those of scikit-learn, with values from 0 to 1."""

import numpy as np
from sklearn.datasets import load_digits

from bevel.datasets.digits import read_digits


def test_every_digit_is_in_one_part():
    spec, train, test = read_digits()
    parts = [part.records.read(np.arange(len(part.records))) for part in (train, test)]
    found = np.concatenate([part["x"] for part in parts]).reshape(-1, 64) * 16
    expected, labels = load_digits(return_X_y=True)
    assert sorted(found.astype(int).tolist()) == sorted(expected.astype(int).tolist())
    counts = np.bincount(np.concatenate([part["y"] for part in parts]), minlength=spec.classes)
    np.testing.assert_array_equal(counts, np.bincount(labels))
