"""Bundled data sets are what their description says, and always the same."""

import numpy as np
import pytest

from bevel.datasets import DataTable, data_set
from bevel.datasets.bundled import bundled


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
    np.testing.assert_array_equal(columns(data.test)["x"], columns(bundled(name).test)["x"])


@pytest.mark.parametrize("name", ["breast_cancer", "sequences"])
def test_tuning_sees_nothing_of_the_test_set(name):
    whole, part = bundled(name), bundled(name, tune=True)
    assert part.spec == whole.spec
    for axis in "xy":
        joined = np.concatenate([columns(part.train)[axis], columns(part.test)[axis]])
        np.testing.assert_array_equal(joined, columns(whole.train)[axis])


def test_other_names_are_not_bundled():
    assert bundled("data.npz") is None
