import math
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from bevel.report.line_chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Series,
    axis_of,
    line_chart,
    round_step,
    shown,
)


def test_points_are_drawn_at_their_values():
    series = Series("a", [0, 5, 10], [1.0, 2.0, 3.0])
    drawn = line_chart("t", Axis("x", 0, 10), Axis("y", 1, 3), [series])
    (points,) = re.findall(r'<polyline [^>]*points="([^"]*)"', drawn)
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    middle = ((LEFT + right) / 2, (TOP + bottom) / 2)
    assert places == [(LEFT, bottom), middle, (right, TOP)]


def test_a_log_axis_has_equal_decades():
    axis = axis_of("norm", [0.02, 50.0], log=True)
    assert (axis.low, axis.high) == (0.01, 100) and axis.fraction(1.0) == pytest.approx(0.5)
    assert axis.ticks() == pytest.approx([0.01, 0.1, 1, 10, 100])
    assert not axis_of("norm", [0.0, 1.0], log=True).log  # zero cannot be shown on a log axis


def test_gaps_split_a_line_and_single_points_are_dots():
    series = Series("a", range(5), [1.0, 2.0, None, math.nan, 3.0])
    assert series.segments() == [[(0, 1), (1, 2)], [(4, 3)]]
    drawn = line_chart("t", Axis("x", 0, 4), Axis("y", 0, 3), [series])
    assert drawn.count("<polyline") == 1 and drawn.count("<circle") == 1


@hypothesis.given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_even_and_within_the_axis(low, width):
    axis = Axis("x", low, low + width)
    hypothesis.assume(axis.high - axis.low > abs(low) * 1e-9)
    ticks = axis.ticks()
    step = round_step((axis.high - axis.low) / 5)
    assert 2 <= len(ticks) <= 7
    assert all(axis.low - step * 1e-6 <= tick <= axis.high + step * 1e-6 for tick in ticks)
    assert f"{step:.0e}"[0] in "125"


@hypothesis.given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.booleans())
def test_an_axis_covers_all_values(values, log):
    axis = axis_of("y", values, include=[0], log=log)
    assert axis.low < axis.high
    assert all(-1e-9 <= axis.fraction(value) <= 1 + 1e-9 for value in values)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.5, "−0.5"),
        (1e-5, "10⁻⁵"),
        (2e6, "2·10⁶"),
        (123457.0, "123457"),
        (-1.5e-7, "−1.5·10⁻⁷"),
        (0.30000000000000004, "0.3"),
    ],
)
def test_numbers_on_an_axis_are_short(value, text):
    assert shown(value) == text


def test_words_are_escaped():
    drawn = line_chart('"<b>', Axis("<x>", 0, 1), Axis("y&", 0, 1), [])
    assert "<b>" not in drawn and "&lt;x&gt;" in drawn and "y&amp;" in drawn
