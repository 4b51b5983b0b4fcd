"""Labels are those that the config declares, and others are errors."""

import dataclasses

import numpy as np
import pytest

from bevel.datasets import DataSpec, DataTable
from bevel.datasets.labels import Labels, as_texts, check_missing, declared_labels, labels_of
from bevel.errors import FixArgumentsError, FixDataError


@pytest.mark.parametrize(
    "values",
    [np.array([3, 1, 2]), np.array([3.0, 1.0, 2.0]), np.array([" 3", "1", "2"])],
    ids=lambda values: values.dtype.name,
)
def test_labels_that_do_not_start_at_0_are_listed(values):
    y, missing = Labels(3, ("1", "2", "3")).encode(values, "file")
    assert y.tolist() == [2, 0, 1] and y.dtype == np.int32 and not missing.any()


def test_missing_labels_are_marked():
    y, missing = Labels(2, ("a", "b")).encode(np.array(["b", "", "?", "a"]), "file")
    assert missing.tolist() == [False, True, True, False]
    assert y.tolist() == [1, 0, 0, 0]
    y, missing = Labels(2).encode(np.array([1.0, np.nan]), "file")
    assert missing.tolist() == [False, True] and y.dtype == np.int32
    y, missing = Labels(None, bounds=(0.0, 4.0)).encode(np.array([1.0, np.nan, 9.0]), "file")
    assert y.tolist() == [-0.5, 0.0, 1.0] and missing.tolist() == [False, True, False]


def test_a_label_that_looks_missing_may_be_a_class():
    y, missing = Labels(2, ("None", "some")).encode(np.array(["None", "some"]), "file")
    assert y.tolist() == [0, 1] and not missing.any()


@pytest.mark.parametrize(
    ("labels", "values", "message"),
    [
        (Labels(3), [1, 2, 3], r'1 labels are not class numbers from 0 to 2, such as 3.*"3"'),
        (Labels(3), [0, 2**31], "such as 2.14748e"),
        (Labels(3), [0, -1], "such as -1"),
        (Labels(2, ("a", "b")), ["a", "c", "c"], "2 labels are not in the list.*such as 'c'"),
        (Labels(2), ["yes", "no"], r'classes = \["no", "yes"\]'),
        (Labels(None, bounds=(0.0, 1.0)), ["x"], "holds text"),
    ],
)
def test_undeclared_labels_are_errors(labels, values, message):
    with pytest.raises(FixDataError, match=message):
        labels.encode(np.array(values), "file")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 9, 3], "class numbers from 0 to 9: write classes = 10"),
        (["no", "yes"], r'write classes = \["no", "yes"\]'),
        ([0, 10**6], "target = 'number' and y_range"),
    ],
)
def test_classes_are_never_derived_from_the_records(values, message):
    with pytest.raises(FixDataError, match=message):
        declared_labels(None, np.array(values), "file")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 1}, "at least 2 classes"),
        ({"classes": ("a",)}, "at least two labels"),
        ({"classes": ("a", "b", "a")}, "each once"),
        ({"y_range": (0.0, 1.0)}, "write target = 'number'"),
        ({"target": "number"}, r"write y_range = \[low, high\]"),
        ({"target": "number", "y_range": (1.0, 0.0)}, r"y_range is \[1.0, 0.0\]"),
        ({"target": "number", "y_range": (0.0, 1.0), "classes": 3}, "leave one of them out"),
        ({"target": "next token", "classes": 3}, "leave one of them out"),
    ],
)
def test_declarations_that_contradict_each_other(options, message):
    with pytest.raises(FixArgumentsError, match=message):
        labels_of(dataclasses.replace(DataTable(), **options))


def test_the_description_says_what_is_predicted():
    spec = DataSpec("table", (3,))
    assert Labels(4).described(spec) == DataSpec("table", (3,), classes=4)
    number = Labels(None, bounds=(0.0, 9.0)).described(spec)
    assert (number.target, number.target_range, number.classes) == ("number", (0.0, 9.0), None)


def test_records_without_a_label_are_counted():
    missing = np.array([False, True, True])
    check_missing(missing, True, "file")
    with pytest.raises(FixDataError, match="2 of 3 records have no label, the first in row 2"):
        check_missing(missing, False, "file")


def test_whole_numbers_have_no_decimal_point():
    assert as_texts(np.array([1.0, 2.5, np.nan])).tolist() == ["1", "2.5", ""]
