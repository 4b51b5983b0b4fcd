"""The noise search: few evaluations, and never a cost above the allowed one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bevel.accounting.noise_search import NoiseSearch
from bevel.errors import FixArgumentsError

CURVES = {
    "line": lambda noise: 3 / noise,
    "square": lambda noise: 3 / noise**2,
    "steep": lambda noise: math.exp(min(1 / noise**2, 700)) - 1,
    "flat": lambda noise: 1 / noise**0.4,
    "to zero": lambda noise: max(0.0, 3 / noise - 0.1),
    "infinite": lambda noise: math.inf if noise < 0.5 else 3 / noise,
}


@pytest.mark.parametrize("curve", CURVES)
@given(st.floats(0.05, 20), st.floats(0.02, 1e4))
def test_the_cost_is_in_the_window(curve, goal, start):
    cost = CURVES[curve]
    if not cost(1e-2) > goal * 1.01 > goal > cost(1e9):
        return
    counted = []
    low, high = 0.999 * goal, 1.001 * goal
    search = NoiseSearch(goal=goal)
    noise = search.within(lambda x: counted.append(x) or cost(x), start, low, high)
    assert cost(noise) <= high
    if curve != "infinite" or goal < 6:
        assert cost(noise) >= low * (1 - 1e-9)
    assert len(counted) < 60


def test_a_good_start_needs_two_evaluations():
    counted = []
    search = NoiseSearch(goal=3.0, slope=-2.0)

    def cost(noise):
        counted.append(noise)
        return 12 / noise**2

    assert 2.999 <= cost(search.within(cost, 2.01, 2.999, 3.001)) <= 3.001
    assert len(counted) <= 4


def test_near_takes_one_more_step_towards_the_goal():
    search = NoiseSearch(goal=3.0, slope=-2.0)
    found = search.near(lambda noise: 12 / noise**2, 1.995)
    assert 12 / found**2 == pytest.approx(3.0, rel=1e-4)


def test_a_jump_over_the_window_ends_on_the_safe_side():
    noise = NoiseSearch(goal=2.0).within(lambda x: 5.0 if x < 3 else 1.0, 1.0, 1.99, 2.0)
    assert 3 <= noise < 3.001


def test_goals_that_cannot_be_met():
    with pytest.raises(FixArgumentsError, match="is not met with any noise"):
        NoiseSearch(goal=2.0).within(lambda x: math.inf, 1.0, 1.9, 2.0)
    with pytest.raises(FixArgumentsError, match="is met with almost no noise"):
        NoiseSearch(goal=2.0).within(lambda x: 0.0, 1.0, 1.9, 2.0)
