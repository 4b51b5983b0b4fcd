"""Numbers that make no sense are refused where they come in."""

import math

import numpy as np
import pytest

from bevel.checks import probability, whole_number
from bevel.errors import FixArgumentsError


@pytest.mark.parametrize("value", [1, 7, np.int32(3), np.uint8(1)])
def test_whole_numbers(value):
    assert whole_number("steps", value, 1) == int(value)
    assert type(whole_number("steps", value, 1)) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "3", math.nan, np.float64(2)])
def test_what_is_no_whole_number_of_that_size_is_refused(value):
    with pytest.raises(FixArgumentsError, match=r"steps=.*at least 1"):
        whole_number("steps", value, 1)


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, 0.5, np.float32(0.25)])
def test_probabilities(value):
    assert probability("p", value) == float(value)


@pytest.mark.parametrize("value", [-1e-9, 1 + 1e-9, math.nan, math.inf, "0.5", None, True])
def test_what_is_no_probability_is_refused(value):
    with pytest.raises(FixArgumentsError, match=r"p=.*between 0 and 1"):
        probability("p", value)
