"""Spaces: values follow their distributions, trials are independent, and mistakes are named."""

import math

import numpy as np
import pytest
import scipy.stats

from bevel.errors import FixArgumentsError
from bevel.tuning import LogUniform, OneOf, Uniform
from bevel.tuning.spaces import checked_space, combinations, drawn_settings, grid_of

SPACE = {"a": Uniform(-1.0, 3.0), "b": LogUniform(1e-3, 10.0), "c": OneOf("x", "y", "z")}


def test_values_follow_their_distributions():
    drawn = [drawn_settings(SPACE, 7, trial) for trial in range(3000)]
    a, b, c = ([settings[name] for settings in drawn] for name in "abc")
    assert scipy.stats.kstest(np.add(a, 1) / 4, "uniform").pvalue > 1e-3
    assert scipy.stats.kstest((np.log10(b) + 3) / 4, "uniform").pvalue > 1e-3
    assert scipy.stats.chisquare([c.count(v) for v in "xyz"]).pvalue > 1e-3
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1 and abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.1


def test_a_trial_depends_on_the_seed_and_its_number_only():
    assert drawn_settings(SPACE, 7, 4) == drawn_settings(dict(reversed(SPACE.items())), 7, 4)
    assert drawn_settings(SPACE, 7, 4) != drawn_settings(SPACE, 8, 4)


@pytest.mark.parametrize("distribution", SPACE.values())
@pytest.mark.parametrize("u", [2.0**-54, 1 - 2.0**-54])
def test_values_stay_between_the_ends(distribution, u):
    value, ends = distribution.value(u), distribution.ends()
    assert value in ends or ends[0] <= value <= ends[-1]


@pytest.mark.parametrize("kind", [Uniform, LogUniform])
@pytest.mark.parametrize(
    "low, high", [(1.0, 1.0), (2.0, 1.0), (0.1, math.inf), ("1", 2), (True, 2)]
)
def test_ranges_need_two_numbers(kind, low, high):
    with pytest.raises(FixArgumentsError, match="two finite numbers, low < high"):
        kind(low, high)


def test_logarithms_need_positive_numbers():
    with pytest.raises(FixArgumentsError, match="its logarithm is drawn"):
        LogUniform(-1.0, 1.0)


def test_a_choice_needs_a_value():
    with pytest.raises(FixArgumentsError, match="has no values"):
        OneOf()


@pytest.mark.parametrize("space", [{}, None, [("a", OneOf(1))]])
def test_a_space_is_a_dict(space):
    with pytest.raises(FixArgumentsError, match="pass a dict of names and distributions"):
        checked_space(space)


def test_a_space_has_distributions():
    with pytest.raises(FixArgumentsError, match=r"space\['a'\]=\[1, 2\]: pass Uniform"):
        checked_space({"a": [1, 2]})


def test_a_grid_has_all_combinations_of_choices():
    grid = grid_of({"a": OneOf(1, 2), "b": OneOf("x", "y")})
    assert grid == combinations({"a": (1, 2), "b": ("x", "y")}) and len(grid) == 4
    with pytest.raises(FixArgumentsError, match="has infinitely many values"):
        grid_of(SPACE)


class Unnamed:
    def value(self, u):
        return u

    def ends(self):
        return (0.0, 1.0)


@pytest.mark.parametrize(
    "distribution, match",
    [(OneOf(1, np.sin), "cannot be recorded with the result"), (Unnamed(), "Give the class a")],
)
def test_values_that_no_record_can_hold_are_refused_before_a_charge(distribution, match):
    with pytest.raises(FixArgumentsError, match=match):
        checked_space({"a": distribution})


def test_a_range_that_overflows_is_refused():
    with pytest.raises(FixArgumentsError, match="difference is finite"):
        Uniform(-1e308, 1e308)
    with pytest.raises(FixArgumentsError, match="high / low overflows"):
        LogUniform(1e-300, 1e300)
