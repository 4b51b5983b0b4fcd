"""A description of a data set has no records in it."""

import dataclasses

import jax
import numpy as np

from bevel.datasets import DataSet, DataSpec, DataTable, data_set


def test_the_description_of_the_digits_is_of_plain_values():
    spec = data_set(DataTable()).spec
    assert spec == DataSpec("image", (8, 8, 1), classes=10)
    kinds = {type(value) for value in dataclasses.astuple(spec)}
    assert kinds <= {str, tuple, int, type(None)}


def test_the_types_of_a_record_follow_from_the_target():
    of_class = DataSpec("image", (8, 8, 1), classes=10).record
    assert of_class["x"] == jax.ShapeDtypeStruct((8, 8, 1), np.float32)
    assert of_class["y"] == jax.ShapeDtypeStruct((), np.int32)
    number = DataSpec("table", (3,), target="number", target_range=(0.0, 9.0)).record
    assert number["y"] == jax.ShapeDtypeStruct((), np.float32)
    tokens = DataSpec("tokens", (16,), "int32", vocabulary=50, target="next token").record
    assert tokens["y"] == tokens["x"] == jax.ShapeDtypeStruct((16,), np.int32)


def test_units_are_users_where_users_are_protected():
    data = data_set(DataTable())
    assert data.units == 1437
    users = np.arange(1437) // 2
    assert DataSet(data.spec, data.train, data.test, users).units == 719
