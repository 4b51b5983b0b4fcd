"""Canaries take the places of units, and no other record changes."""

import numpy as np
import pytest

from bevel.auditing import gradient_canaries, record_canaries
from bevel.auditing.data_with_canaries import DataWithCanaries
from bevel.errors import FixArgumentsError
from bevel.training.data import rows, source_of

X = np.arange(20.0, dtype=np.float32).reshape(10, 2)


def test_places_have_the_number_of_their_canary():
    canaries = gradient_canaries({"w": np.zeros(9, np.float32)}, 4, 10, seed=0)
    source = DataWithCanaries(source_of(X), canaries)
    assert source_of(source) is source and len(source) == 10
    read = source.read(np.arange(10))
    np.testing.assert_array_equal(read["record"], X)
    np.testing.assert_array_equal(read["canary"][canaries.units], [1, 2, 3, 4])
    assert (read["canary"] > 0).sum() == 4


def test_padding_is_not_a_canary():
    canaries = gradient_canaries({"w": np.zeros(9, np.float32)}, 9, 10, seed=0)
    padded = rows(DataWithCanaries(source_of(X), canaries), np.array([3, -1, -1]))
    assert padded["canary"].tolist()[1:] == [0, 0]


def test_all_records_of_a_user_are_its_canary():
    canaries = gradient_canaries({"w": np.zeros(9, np.float32)}, 2, 5, seed=0)
    users = np.repeat(np.arange(5), 2)
    numbers = DataWithCanaries(source_of(X), canaries, users).read(np.arange(10))["canary"]
    assert (numbers[::2] == numbers[1::2]).all() and sorted(numbers) == [0] * 6 + [1, 1, 2, 2]


def test_records_replace_those_of_their_places():
    canaries = record_canaries(np.full((3, 2), -1, np.float32), 10, seed=0)
    read = DataWithCanaries(source_of(X), canaries).read(np.arange(10))["record"]
    own = np.isin(np.arange(10), canaries.units)
    assert (read[own] == -1).all()
    np.testing.assert_array_equal(read[~own], X[~own])
    assert (X >= 0).all()


def test_records_of_another_shape_are_refused():
    with pytest.raises(FixArgumentsError, match="with the shapes and dtypes of the data"):
        DataWithCanaries(source_of(X), record_canaries(np.zeros((3, 5), np.float32), 10))
