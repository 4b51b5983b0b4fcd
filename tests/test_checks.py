"""Argument checks accept valid numbers and raise for all others."""

import math

import numpy as np
import pytest

from bevel.checks import (
    finite_number,
    flag,
    in_one_line,
    integers,
    path,
    probability,
    reals,
    scalar,
    shown,
    whole_number,
)
from bevel.errors import FixArgumentsError

HUGE = pytest.param(10**5000, id="huge")  # has no text


@pytest.mark.parametrize("value", [1, 7, np.int32(3), np.uint8(1)])
def test_whole_numbers(value):
    assert whole_number("steps", value, 1) == int(value)
    assert type(whole_number("steps", value, 1)) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, True, np.True_, None, "3", math.nan, np.float64(2)])
def test_other_values_and_smaller_numbers_are_refused(value):
    with pytest.raises(FixArgumentsError, match=r"steps=.*at least 1"):
        whole_number("steps", value, 1)


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.5, np.float32(0.25)])
def test_probabilities(value):
    assert probability("p", value) == float(value)


@pytest.mark.parametrize("value", [-1e-9, 1 + 1e-9, math.nan, math.inf, "0.5", None, True])
def test_values_outside_zero_to_one_are_refused(value):
    with pytest.raises(FixArgumentsError, match=r"p=.*between 0 and 1"):
        probability("p", value)


def test_text_in_a_message_is_one_short_line():
    assert in_one_line("a\n  b") == "a b"
    line = in_one_line({f"layer {i}": None for i in range(100)}, 80)
    assert len(line) == 80 and line.endswith(" ...")


@pytest.mark.parametrize("value", [10**30, 2**53 + 1, np.uint64(2**63), HUGE])
def test_integers_that_float64_does_not_hold_are_refused(value):
    with pytest.raises(FixArgumentsError, match=r"steps=.*pass an integer from 1 to"):
        whole_number("steps", value)
    with pytest.raises(FixArgumentsError, match=r"from 1 to 10\. Because\."):
        whole_number("steps", 11, 1, 10, "Because.")


@pytest.mark.parametrize("value", [0, 1.5, -2, np.float32(0.5), np.int64(3), 10**300])
def test_finite_numbers_are_returned_as_floats(value):
    assert type(finite_number("x", value, "hint")) is float


@pytest.mark.parametrize("value", [math.nan, math.inf, True, "1", None, 1j, HUGE])
def test_other_values_are_no_finite_numbers(value):
    with pytest.raises(FixArgumentsError, match=r"x=.*: pass a number from 0 to 1, such as 0\.5\."):
        finite_number("x", value, "such as 0.5", 0, 1)


@pytest.mark.parametrize("value", [0, 1, None, "yes", np.array([True])])
def test_flags_are_bools(value):
    assert flag("f", True) is True and flag("f", np.False_) is False
    with pytest.raises(FixArgumentsError, match=r"f=.*: pass True or False\."):
        flag("f", value)


def test_values_without_a_representation_are_shown():
    assert shown(10**5000) == "<int>" and shown("x" * 500).endswith(" ...")


@pytest.mark.parametrize("value", ["", "a\0b", "x" * 300, b"x", 3, None])
def test_paths(value):
    assert path("p", "runs/one") == "runs/one"
    with pytest.raises(FixArgumentsError, match=r"p=.*: pass a path"):
        path("p", value)


@pytest.mark.parametrize("value", [np.float32(2), 2, np.array(2.0), np.int8(2)])
def test_scalars_of_any_kind_are_floats(value):
    assert scalar(value) == 2.0 and type(scalar(value)) is float


@pytest.mark.parametrize("value", [True, np.ones(1), "2", None, np.ma.masked])
def test_other_values_are_no_scalars(value):
    assert math.isnan(scalar(value))


def test_arrays_of_numbers():
    assert integers("a", [1, 2]).dtype == np.int64 and integers("a", []).dtype == np.int64
    assert reals("r", [1, 2.5]).tolist() == [1, 2.5]
    for value in ([1.5], [[1]], ["a"], [[1], [2, 3]], np.ma.masked_array([1])):
        with pytest.raises(FixArgumentsError, match=r"a (has dtype|is a masked array)"):
            integers("a", value)
    for value in ([1j], ["a"], [[1], [2, 3]], [math.nan], np.ma.masked_array([1.0])):
        with pytest.raises(FixArgumentsError, match=r"r(\[0\])? (has dtype|is )"):
            reals("r", value)
