"""What a column holds is recognised from its values and its name."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from bevel.datasets.column_scan import ColumnScan


def scanned(name, values, batches=1):
    array = values if isinstance(values, pa.Array) else pa.array(values)
    scan = ColumnScan(name, array.type)
    size = -(-len(array) // batches)
    for start in range(0, len(array), size):
        scan.add(array[start : start + size])
    return scan.overview()


@pytest.mark.parametrize("batches", [1, 3])
def test_numbers_dates_and_texts(batches):
    number = scanned("age", ["3", "", "12", "3", "?", "7.5"], batches)
    assert (number.kind, number.missing, number.distinct) == ("number", 2, 3)
    assert (number.low, number.high, number.whole) == (3.0, 12.0, False)
    date = scanned("day", ["2020-01-05", "2021-06-30", "2020-02-01"], batches)
    assert (date.kind, date.low, date.high) == ("date", "2020-01-05", "2021-06-30")
    text = scanned("job", [" a", "b", "a", "1", "", "b "], batches)
    assert (text.kind, text.missing, text.counts) == ("text", 1, {"1": 1, "a": 2, "b": 2})


def test_columns_with_types():
    assert scanned("f", np.array([0.5, np.nan, np.inf])).low == 0.5
    whole = scanned("i", np.arange(5))
    assert (whole.kind, whole.whole, whole.low, whole.high) == ("number", True, 0.0, 4.0)
    assert scanned("d", [datetime.date(2020, 1, 1), None]).kind == "date"
    assert scanned("tags", [[1], [2]]).kind == "nested"
    assert scanned("nothing", ["", "NA"]).kind == "text"


@pytest.mark.parametrize(
    ("name", "values", "guess"),
    [
        ("patient_id", [f"p{k % 30}" for k in range(100)], "user id"),
        ("customerId", [k % 30 for k in range(100)], "user id"),
        ("User", [f"p{k % 30}" for k in range(100)], "user id"),
        ("id", [k % 30 for k in range(100)], "user id"),
        ("id", list(range(100)), "identifier"),
        ("row", list(range(7, 107)), "identifier"),
        ("code", [f"{k:05x}" for k in range(100)], "identifier"),
        ("amount", [k * k for k in range(100)], ""),
        ("weight", [k + 0.5 for k in range(100)], ""),
        ("review", [f"a text of many characters, number {k}" for k in range(100)], "long text"),
        ("job", ["a", "b"] * 50, ""),
        ("humidity", [k % 30 for k in range(100)], ""),
        ("name", ["a", "b", "c"], ""),
    ],
)
def test_guesses(name, values, guess):
    assert scanned(name, values).looks_like == guess


def test_many_different_values_are_not_kept(monkeypatch):
    monkeypatch.setattr("bevel.datasets.column_scan.DISTINCT_LIMIT", 50)
    found = scanned("code", [f"{k:05x}" for k in range(200)], 4)
    assert found.distinct is None and found.counts == {} and found.looks_like == "identifier"
