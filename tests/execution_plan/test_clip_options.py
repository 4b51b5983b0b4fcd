"""Clipping options, and the bound of one record."""

import math

import pytest

from bevel.errors import FixArgumentsError
from bevel.execution_plan.clip_options import ClipOptions


def test_the_bound_is_the_clip_norm_or_one_over_the_divisor():
    assert ClipOptions(2.0, False, 8.0).l2_norm_bound == 0.25
    assert ClipOptions(2.0, True, 8.0).l2_norm_bound == 0.125
    assert ClipOptions(math.inf, False, 8.0).l2_norm_bound == math.inf


@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "1"])
@pytest.mark.parametrize("name", ["l2_clip_norm", "normalize_by"])
def test_lengths_and_divisors_are_positive(name, value):
    options = {"l2_clip_norm": 1.0, "rescale_to_unit_norm": True, "normalize_by": 1.0}
    with pytest.raises(FixArgumentsError, match=name):
        ClipOptions(**options | {name: value})
