import hypothesis
import pytest
from hypothesis import strategies as st

from bevel.report.axis import TICKS, Axis, axis_of, round_step, shown, spoken


def test_a_log_axis_has_equal_decades():
    axis = axis_of("norm", [0.02, 50.0], log=True)
    assert (axis.low, axis.high) == (0.01, 100) and axis.fraction(1.0) == pytest.approx(0.5)
    assert axis.ticks() == pytest.approx([0.01, 0.1, 1, 10, 100])
    assert not axis_of("norm", [0.0, 1.0], log=True).log  # zero cannot be shown on a log axis


@hypothesis.given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_even_and_within_the_axis(low, width):
    axis = Axis("x", low, low + width)
    hypothesis.assume(axis.high - axis.low > abs(low) * 1e-9)
    ticks = axis.ticks()
    step = round_step((axis.high - axis.low) / TICKS)
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


def test_numbers_in_words_have_four_digits():
    assert [spoken(x) for x in (0.123456, -2.0, 1e-7, float("inf"))] == [
        "0.1235",
        "−2",
        "1e−07",
        "∞",
    ]


@pytest.mark.parametrize(
    ("low", "high", "labels", "power"),
    [
        (0.0, 1.0, ["0", "0.2", "0.4", "0.6", "0.8", "1"], ""),
        (-1.6e-7, -1.4e-7, ["−1.6", "−1.55", "−1.5", "−1.45", "−1.4"], ", in 10⁻⁷"),
        (0.0, 3e9, ["0", "0.5", "1", "1.5", "2", "2.5", "3"], ", in 10⁹"),
    ],
)
def test_very_small_and_large_ticks_leave_their_power_to_the_axis(low, high, labels, power):
    assert Axis("y", low, high).tick_labels() == (labels, power)
    assert axis_of("y", [1e-9, 1e9], log=True).tick_labels()[1] == ""
