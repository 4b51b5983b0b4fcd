"""Argument checks accept valid numbers and raise for all others."""

import math

import numpy as np
import pytest

from bevel.checks import in_one_line, probability, whole_number
from bevel.errors import FixArgumentsError


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
