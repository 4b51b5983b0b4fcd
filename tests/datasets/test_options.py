"""The defaults of the [data] table."""

import dataclasses

from bevel.datasets import DataTable


def test_the_default_is_the_digits_with_their_own_test_set():
    assert DataTable() == DataTable(source="digits", tune=False)


def test_nothing_about_the_data_is_public_by_default():
    """Classes, ranges, categories and sizes are said by the owner, or not at all."""
    table = DataTable()
    declared = ("classes", "y_range", "columns", "size", "vocabulary", "length")
    assert not any(getattr(table, name) for name in declared)
    assert {field.name for field in dataclasses.fields(table)} >= set(declared)
