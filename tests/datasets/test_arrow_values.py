"""Values of every Arrow type become NumPy values, or are refused with their column and row."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

from bevel.datasets.arrow_values import days, is_plain, numbers, texts
from bevel.errors import FixDataError


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3], pa.int64()),
        pa.array([1.0, None, 3.0], pa.float32()),
        pa.array([1, None, 3], pa.decimal128(9, 2)),
        pa.array(["1", " ? ", "3.0 "]),
        pa.array(["1", "NA", "3"], pa.large_string()),
        pa.array(["1", None, "3"]).dictionary_encode(),
        pa.chunked_array([pa.array([1, None]), pa.array([3])]),
    ],
    ids=lambda values: str(values.type),
)
def test_numbers_of_every_type(values):
    np.testing.assert_array_equal(numbers(values, "c", 1), [1.0, np.nan, 3.0])


def test_booleans_are_0_and_1():
    np.testing.assert_array_equal(numbers(pa.array([True, None, False]), "c", 1), [1, np.nan, 0])
    np.testing.assert_array_equal(numbers(pa.array(["True", "false"]), "c", 1), [1, 0])


def test_large_decimals_and_a_column_without_values():
    large = pa.array([decimal.Decimal("12345678901234567.89")])
    assert numbers(large, "c", 1)[0] == pytest.approx(1.2345678901234568e16)
    assert np.isnan(numbers(pa.nulls(2), "c", 1)).all()


@pytest.mark.parametrize("word", ["abc", "1,000", "12 years"])
def test_a_text_that_is_not_a_number_is_named(word):
    with pytest.raises(FixDataError, match=f"row 42: column 'age' holds '{word}', which is not a"):
        numbers(pa.array(["1", "2", word]), "age", 40)


def test_days_of_dates_and_times():
    stamps = [datetime.datetime(1970, 1, 2, 12), None]
    for unit in ("s", "ms", "us", "ns"):
        np.testing.assert_array_equal(
            days(pa.array(stamps, pa.timestamp(unit)), "t", 1), [1.5, np.nan]
        )
    aware = pa.array(stamps, pa.timestamp("us", tz="UTC"))
    np.testing.assert_array_equal(days(aware, "t", 1), [1.5, np.nan])
    dates = pa.array([datetime.date(1970, 1, 3), None])
    np.testing.assert_array_equal(days(dates, "t", 1), [2.0, np.nan])
    with pytest.raises(FixDataError, match="row 1: column 't' holds 'soon', which is not a date"):
        days(pa.array(["soon"]), "t", 1)
    with pytest.raises(FixDataError, match=r"declared: write t = \[low, high\] with numbers"):
        days(pa.array([1, 2]), "t", 1)
    with pytest.raises(FixDataError, match="holds dates or times"):
        numbers(dates, "t", 1)


def test_texts_are_trimmed_and_fractions_are_refused():
    assert texts(pa.array([" a ", None, "b"]), "c").tolist() == ["a", "", "b"]
    assert texts(pa.array([1, 20]), "c").tolist() == ["1", "20"]
    assert texts(pa.array([], pa.string()), "c").shape == (0,)
    with pytest.raises(FixDataError, match="numbers with a fraction"):
        texts(pa.array([1.5]), "c")


def test_nested_columns_are_refused():
    nested = pa.array([[1, 2], [3]])
    assert not is_plain(nested.type)
    assert not is_plain(pa.struct([("a", pa.int8())]))
    assert is_plain(pa.dictionary(pa.int8(), pa.string()))
    for read in (lambda: numbers(nested, "tags", 1), lambda: texts(nested, "tags")):
        with pytest.raises(FixDataError, match="column 'tags' has type list"):
            read()
