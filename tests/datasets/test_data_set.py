"""A description of a data set has no records in it."""

import dataclasses

from bevel.datasets import DataSpec, DataTable, data_set


def test_the_description_of_the_digits_is_of_plain_values():
    spec = data_set(DataTable()).spec
    assert spec == DataSpec("image", (8, 8, 1), classes=10)
    kinds = {type(value) for value in dataclasses.astuple(spec)}
    assert kinds <= {str, tuple, int, type(None)}
