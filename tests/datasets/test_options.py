"""The defaults of the [data] table."""

from bevel.datasets import DataTable


def test_the_default_is_the_digits_with_their_own_test_set():
    assert DataTable() == DataTable(source="digits", tune=False)
