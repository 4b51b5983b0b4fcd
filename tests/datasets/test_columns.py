"""The features of a record depend on the record and on what is declared."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from bevel.datasets.columns import CategoryColumn, NumberColumn, columns_of, declared
from bevel.errors import FixArgumentsError, FixDataError


def test_numbers_are_clipped_and_scaled():
    found = NumberColumn("age", 0.0, 100.0).encode(pa.array([0, 25, 100, 250, -7]), 1)
    assert found[:, 0].tolist() == [-1.0, -0.5, 1.0, 1.0, -1.0]
    infinite = NumberColumn("age", 0.0, 100.0).encode(pa.array([np.inf, -np.inf]), 1)
    assert infinite[:, 0].tolist() == [1.0, -1.0]


def test_missing_numbers_are_zero_with_a_mark():
    column = NumberColumn("age", 0.0, 100.0, may_be_missing=True)
    found = column.encode(pa.array([25.0, None, np.nan]), 1)
    assert found.tolist() == [[-0.5, 0.0], [0.0, 1.0], [0.0, 1.0]]
    with pytest.raises(FixDataError, match=r"row 12: column 'age'.*age = \[0, 100, \"missing\"\]"):
        NumberColumn("age", 0.0, 100.0).encode(pa.array([25.0, None]), 11)


def test_unlisted_and_missing_categories_are_other():
    column = CategoryColumn("job", ("clerk", "nurse"))
    found = column.encode(pa.array([" nurse", "clerk ", "pilot", None, ""]), 1)
    assert found.argmax(1).tolist() == [1, 0, 2, 2, 2]
    assert found.sum(1).tolist() == [1.0] * 5
    assert CategoryColumn("zip", ("1", "2")).encode(pa.array([2, 7]), 1).argmax(1).tolist() == [
        1,
        2,
    ]


def test_dates_are_scaled_like_numbers():
    (column,) = columns_of(
        {"joined": declared([datetime.date(2020, 1, 1), datetime.date(2020, 1, 10)])}
    )
    assert column.dates
    days = pa.array([datetime.date(2019, 1, 1), datetime.date(2020, 1, 6), None])
    with pytest.raises(FixDataError, match="row 3"):
        column.encode(days, 1)
    assert column.encode(days[:2], 1)[:, 0].tolist() == [-1.0, 0.0]
    text = column.encode(pa.array(["2020-01-06", "2020-01-06 12:00:00"]), 1)[:, 0]
    np.testing.assert_allclose(text, [0.0, 0.1], atol=1e-6)


@pytest.mark.parametrize("removed", range(4))
def test_no_record_changes_the_features_of_another(removed):
    columns = columns_of({"age": (0.0, 100.0), "job": ("a", "b")})
    ages, jobs = [20, 40, 900, 1], ["a", "b", "zzz", "a"]
    rest = [k for k in range(4) if k != removed]
    for column, values in zip(columns, (ages, jobs), strict=True):
        whole = column.encode(pa.array(values), 1)
        without = column.encode(pa.array([values[k] for k in rest]), 1)
        np.testing.assert_array_equal(whole[rest], without)


def test_widths_are_those_of_the_encoding():
    columns = columns_of({"a": (0, 1), "b": (0.0, 1.0, "missing"), "c": ("x", "y", "z")})
    assert [column.width for column in columns] == [1, 2, 4]
    for column in columns:
        assert column.encode(pa.array(["1"]), 1).shape == (1, column.width)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((5, 5), "low < high"),
        ((0.0, float("inf")), "low < high"),
        ((1, 2, 3), "write .low, high."),
        ((), "write .low, high."),
        (("a", "b", "a"), "'a' is in the list twice"),
        ("number", "write .low, high."),
        ((True, False), "write .low, high."),
        (("2020-01-02..2020-01-01",), "the earlier date first"),
        (("a", 1), "write .low, high."),
    ],
)
def test_a_declaration_that_is_neither(value, message):
    with pytest.raises(FixArgumentsError, match=message):
        columns_of({"age": value})


def test_what_toml_has_becomes_plain_values():
    assert declared([0, 100]) == (0, 100)
    assert declared(["a", "b"]) == ("a", "b")
    dates = [datetime.date(2010, 1, 1), datetime.date(2024, 12, 31), "missing"]
    assert declared(dates) == ("2010-01-01..2024-12-31", "missing")
    (column,) = columns_of({"joined": declared(dates)})
    assert column.may_be_missing and column.dates
