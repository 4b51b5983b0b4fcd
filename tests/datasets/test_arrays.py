"""Arrays of a file become records by the names that the config gives them."""

from pathlib import Path

import numpy as np
import pytest

from bevel.datasets import DataSpec, DataTable
from bevel.datasets.arrays import read_arrays
from bevel.errors import FixArgumentsError, FixDataError

ARRAYS = {
    "x_train": np.arange(48, dtype=np.uint8).reshape(3, 4, 4),
    "y_train": np.array([0, 1, 2]),
    "x_test": np.full((2, 4, 4), 255, np.uint8),
    "y_test": np.array([0, 3]),
}


@pytest.fixture(name="read")
def fixture_read(tmp_path):
    def read(arrays=ARRAYS, **options):
        path = tmp_path / "data.npz"
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
        options.setdefault("classes", 4)
        return read_arrays(DataTable(str(path), **options), path)

    return read


def rows(part):
    return part.records.read(np.arange(len(part.records)))


def test_bytes_are_divided_by_255_and_get_a_channel_axis(read):
    spec, train, test = read()
    assert spec == DataSpec("image", (4, 4, 1), classes=4)
    assert rows(test)["x"].max() == 1.0
    x = rows(train)["x"]
    assert x.dtype == np.float32
    np.testing.assert_array_equal(x[0, 0, :, 0], np.float32([0, 1, 2, 3]) / np.float32(255))


def test_arrays_of_any_name(read):
    arrays = {
        "images": ARRAYS["x_train"],
        "labels": np.array([1, 0, 1]),
        "who": np.array([7, 7, 9]),
    }
    spec, train, test = read(arrays, x="images", y="labels", user="who", classes=2)
    assert test is None and spec.shape == (4, 4, 1)
    assert train.users.numbers.tolist() == [0, 0, 1]
    assert rows(train)["y"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, bool])
def test_tables_of_numbers_become_float32(read, dtype):
    x = (np.arange(6).reshape(3, 2) % 2).astype(dtype)
    spec, train, _ = read({"x": x, "y": np.array([0, 1, 2])})
    assert spec == DataSpec("table", (2,), classes=4)
    np.testing.assert_array_equal(rows(train)["x"], x.astype(np.float32))


def test_labels_with_names_and_records_without_a_label(read):
    x = np.zeros((4, 2), np.float32)
    arrays = {"x": x, "y": np.array(["dog", "cat", "", "dog"])}
    with pytest.raises(FixDataError, match="1 of 4 records have no label, the first in row 3"):
        read(arrays, classes=("cat", "dog"))
    _, train, _ = read(arrays, classes=("cat", "dog"), drop_missing=True)
    assert rows(train)["y"].tolist() == [1, 0, 1]


def test_numbers_to_predict_are_scaled(read):
    arrays = {"x": np.zeros((3, 2), np.float32), "y": np.array([0.0, 15.0, 40.0])}
    spec, train, _ = read(arrays, classes=None, target="number", y_range=(10.0, 20.0))
    assert spec == DataSpec("table", (2,), target="number", target_range=(10.0, 20.0))
    assert rows(train)["y"].tolist() == [-1.0, 0.0, 1.0]


def test_token_sequences_with_classes_and_without(read):
    tokens = np.array([[1, 2, 3, 0], [4, 5, 0, 0]])
    options = {"kind": "tokens", "vocabulary": 6, "padding": 0}
    spec, train, _ = read({"x": tokens, "y": np.array([0, 1])}, **options, classes=2)
    assert spec == DataSpec("tokens", (4,), "int32", 2, 6, padding=0)
    assert rows(train)["x"].dtype == np.int32
    spec, train, _ = read({"tokens": tokens}, **options, classes=None, target="next token")
    assert spec == DataSpec("tokens", (3,), "int32", None, 6, "next token", 0)
    assert rows(train)["x"].tolist() == [[1, 2, 3], [4, 5, 0]]
    assert rows(train)["y"].tolist() == [[2, 3, -1], [5, -1, -1]]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"x_train": None}, {}, r"no x_train or x. It holds y_train, x_test, y_test"),
        ({}, {"x": "x_trian"}, r"no array 'x_trian'. Did you mean 'x_train'\?"),
        ({"y_test": None}, {}, "has no y_train or y|no y"),
        ({"y_train": np.array([0, 1])}, {}, r"shape \(3, 4, 4\) and y_train has shape \(2,\)"),
        ({"x_train": np.zeros((0, 4, 4))}, {}, "x_train is empty"),
        ({"x_train": np.float32(3)}, {}, "x_train is one number"),
        ({"x_train": np.zeros((3, 4, 4), complex)}, {}, "dtype complex128. Inputs are numbers"),
        ({"x_train": np.array(["a", "b", "c"])}, {}, "Inputs are numbers"),
        ({"x_train": np.zeros((3, 2), int)}, {}, "kind = 'tokens' with vocabulary"),
        ({"x_train": np.zeros((3, 2, 2), np.uint8)}, {}, "Both must be equal"),
        ({"x_train": np.zeros((3, 0, 4))}, {}, "hold nothing"),
        ({}, {"classes": None}, r"holds class numbers from 0 to 2: write classes = 3"),
        ({"y_train": np.array([0, -1, 2])}, {}, "1 labels are not class numbers from 0 to 3"),
        ({"y_train": np.array([0, 1, 2**40])}, {}, r"such as 1.09951e\+12"),
        ({"y_train": np.array([0.0, 0.5, 1.0])}, {}, "such as 0.5"),
        ({"y_train": np.array(["a", "b", "a"])}, {}, r'classes = \["a", "b"\]'),
        ({}, {"user": "y_test"}, "one user id per record"),
        ({}, {"kind": "tokens"}, "one row of token ids per record"),
        ({}, {"target": "next token", "classes": None}, "needs kind = 'tokens'"),
    ],
)
def test_what_is_wrong_is_named(read, changes, options, message):
    with pytest.raises((FixDataError, FixArgumentsError), match=message):
        read(ARRAYS | changes, **options)


def test_only_the_rows_of_a_batch_are_read(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20, dtype=np.uint8).reshape(10, 2))
    np.save(tmp_path / "y.npy", np.arange(10) % 2)
    table = DataTable(str(tmp_path), classes=2)
    _, train, _ = read_arrays(table, Path(table.source))
    base = train.records._records.columns["x"]
    assert isinstance(base, np.memmap) and base.dtype == np.uint8
    batch = train.records.read(np.array([3, 1]))
    np.testing.assert_array_equal(batch["x"], np.float32([[6, 7], [2, 3]]) / np.float32(255))
