"""What `fit` accepts as training data."""

import numpy as np
import pytest
from keras_models import keras

from bevel.errors import FixArgumentsError
from bevel.keras_api.training_data import FirstRow, split_validation, training_data

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6)


def test_arrays_dicts_and_lists_are_read_by_row():
    source = training_data({"a": X, "b": [X, X]}, Y, None, 6)
    rows = source.read(np.array([4, 1]))
    np.testing.assert_array_equal(rows["x"]["b"][1], X[[4, 1]])
    np.testing.assert_array_equal(rows["y"], [4, 1])
    assert rows.keys() == {"x", "y"}


class Table:
    def to_numpy(self):
        return X


def test_tables_are_converted():
    assert training_data(Table(), None, None, 6).read(np.array([0]))["x"].shape == (1, 2)


def batches():
    yield X, Y


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((batches(), None, None), "x is a generator: pass NumPy arrays.*sampled"),
        ((None, Y, None), "x is missing"),
        ((X, [0, 1, 2, 3, 4, 5], None), r"y is a list of Python numbers: pass np\.asarray\(y\)"),
        ((X[:5], Y[:5], None), "x has 5 examples.*train_size=6.*set train_size=5"),
        ((X, Y[:5], None), "all first dimensions must be equal"),
    ],
)
def test_other_data_is_refused(data, message):
    with pytest.raises(FixArgumentsError, match=message):
        training_data(*data, 6)


def test_data_sets_of_batches_are_refused():
    class DataSet(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return X, Y

    with pytest.raises(FixArgumentsError, match="data sets that yield batches"):
        training_data(DataSet(), None, None, 6)


def test_validation_takes_the_last_rows():
    (x, y, weights), (x_last, y_last, _) = split_validation((X, {"y": Y}, None), 0.5)
    assert len(x) == len(x_last) == 3 and weights is None
    assert y["y"].tolist() == [0, 1, 2] and y_last["y"].tolist() == [3, 4, 5]
    with pytest.raises(FixArgumentsError, match="validation_split=2"):
        split_validation((X, Y, None), 2)


@pytest.mark.parametrize(("weights", "length"), [(None, 2), (Y, 3)])
def test_keras_sees_the_first_row_once_per_step(weights, length):
    rows = FirstRow(training_data(X, Y, weights, 6), 5)
    assert len(rows) == 5 and len(rows[4]) == length
    assert rows[4][0].tolist() == [[0, 1]]
