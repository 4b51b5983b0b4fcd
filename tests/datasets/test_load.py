"""Data is read and checked, and the test set is never trained on."""

import numpy as np
import pytest

from bevel.datasets import DataTable, data_set
from bevel.errors import FixDataError

ARRAYS = {
    "x_train": np.arange(48, dtype=np.uint8).reshape(3, 4, 4),
    "y_train": np.array([0, 1, 2]),
    "x_test": np.full((2, 4, 4), 255, np.uint8),
    "y_test": np.array([0, 3]),
}


@pytest.fixture(name="read")
def fixture_read(tmp_path):
    def read(**changes):
        path = tmp_path / "data.npz"
        arrays = {k: v for k, v in (ARRAYS | changes).items() if v is not None}
        np.savez(path, **arrays)
        return data_set(DataTable(str(path)))

    return read


def test_the_split_of_the_digits_is_fixed():
    first, second = data_set(DataTable()), data_set(DataTable())
    assert first.train.columns["x"].shape == (1437, 8, 8, 1)
    assert first.test.columns["x"].shape == (360, 8, 8, 1)
    assert first.spec.classes == 10
    assert first.train.columns["x"].max() == 1.0
    np.testing.assert_array_equal(first.test.columns["x"], second.test.columns["x"])
    assert set(first.test.columns["y"]) == set(range(10))


def test_tuning_sees_nothing_of_the_test_set():
    whole, part = data_set(DataTable()), data_set(DataTable(tune=True))
    joined = np.concatenate([part.train.columns["x"], part.test.columns["x"]])
    np.testing.assert_array_equal(joined, whole.train.columns["x"])
    np.testing.assert_array_equal(
        np.concatenate([part.train.columns["y"], part.test.columns["y"]]), whole.train.columns["y"]
    )


def test_bytes_are_divided_by_255_and_get_a_channel_axis(read):
    data = read()
    assert data.spec.shape == (4, 4, 1)
    assert data.spec.classes == 4
    assert data.test.columns["x"].max() == 1.0
    assert data.train.columns["x"].dtype == np.float32
    np.testing.assert_array_equal(
        data.train.columns["x"][0, 0, :, 0], np.float32([0, 1, 2, 3]) / 255
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "has no y_test"),
        ({"y_train": np.array([0, 1])}, r"shape \(3, 4, 4\) and y_train has shape \(2,\)"),
        ({"y_train": np.array([0.0, 1.0, 2.0])}, "y_train must hold class numbers"),
        ({"y_train": np.array([0, -1, 2])}, "y_train must hold class numbers"),
        ({"x_test": np.zeros((0, 4, 4)), "y_test": np.zeros(0, int)}, "at least one example"),
    ],
)
def test_what_is_wrong_is_named(read, changes, message):
    with pytest.raises(FixDataError, match=message):
        read(**changes)


def test_a_missing_file_or_one_that_is_not_an_archive(tmp_path):
    with pytest.raises(FixDataError, match="Did you mean 'digits'"):
        data_set(DataTable("digit"))
    path = tmp_path / "data.npz"
    path.write_text("no archive")
    with pytest.raises(FixDataError, match="cannot be read"):
        data_set(DataTable(str(path)))
