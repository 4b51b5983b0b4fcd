"""Bundled data sets are what their description says, and always the same."""

import dataclasses

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bevel.datasets import DataTable, data_set
from bevel.datasets.bundled import read_bundled


def columns(source):
    return source.read(np.arange(len(source)))


@pytest.mark.parametrize(
    ("name", "sizes"), [("breast_cancer", (455, 114)), ("sequences", (2500, 500))]
)
def test_records_fit_the_description(name, sizes):
    data = data_set(DataTable(name))
    assert (len(data.train), len(data.test)) == sizes
    for part in (data.train, data.test):
        x, y = columns(part)["x"], columns(part)["y"]
        assert x.shape[1:] == data.spec.shape
        assert x.dtype == data.spec.dtype
        assert set(np.unique(y)) == set(range(data.spec.classes))
        if data.spec.kind == "tokens":
            assert 0 <= x.min() == data.spec.padding
            assert x.max() < data.spec.vocabulary
        else:
            assert -1 <= x.min() < x.max() <= 1
            assert np.abs(x).max(0).min() < 1  # the declared ranges hold the values
    again = read_bundled(name)[2].records
    np.testing.assert_array_equal(columns(data.test)["x"], columns(again)["x"])


def test_tuning_sees_nothing_of_the_test_set():
    table = DataTable("breast_cancer")
    whole, part = data_set(table), data_set(dataclasses.replace(table, tune=True))
    assert part.spec == whole.spec
    joined = np.concatenate([columns(part.train)["x"], columns(part.test)["x"]])
    assert sorted(joined.tolist()) == sorted(columns(whole.train)["x"].tolist())


def test_every_digit_is_in_one_part():
    spec, train, test = read_bundled("digits")
    parts = [columns(part.records) for part in (train, test)]
    found = np.concatenate([part["x"] for part in parts]).reshape(-1, 64) * 16
    expected, labels = load_digits(return_X_y=True)
    assert sorted(found.astype(int).tolist()) == sorted(expected.astype(int).tolist())
    counts = np.bincount(np.concatenate([part["y"] for part in parts]), minlength=spec.classes)
    np.testing.assert_array_equal(counts, np.bincount(labels))
