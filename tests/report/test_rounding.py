import math
from decimal import Decimal

import hypothesis
import pytest
from hypothesis import strategies as st

from bevel.report.rounding import (
    percent_up,
    power_of_ten,
    rounded_up,
    shown_delta,
    shown_epsilon,
)


@hypothesis.given(st.floats(1e-6, 1e9), st.integers(2, 6))
def test_shown_numbers_are_never_below_the_true_ones(value, digits):
    shown = Decimal(rounded_up(Decimal(value), digits))
    assert shown >= Decimal(value)
    assert shown <= Decimal(value) * (1 + Decimal(10) ** (1 - digits))


def test_infinity_and_nothing_are_shown_as_such():
    assert shown_epsilon(math.inf) == "∞" and shown_epsilon(0.0) == "0"


@hypothesis.given(st.floats(1e-30, 0.999))
def test_a_delta_is_never_shown_below_the_true_one(delta):
    assert Decimal(shown_delta(delta)) >= Decimal(repr(delta))
    assert float(shown_delta(delta)) <= delta * (1 + 1e-5)


def test_a_delta_that_was_asked_for_is_shown_as_it_was():
    assert [shown_delta(d) for d in (1e-5, 0.001, 3e-7, 8.0)] == ["1e-05", "0.001", "3e-07", "8"]
    assert shown_delta(1.2345649e-5) == "1.23457e-05"  # `:g` would say 1.23456e-05


@hypothesis.given(st.decimals(0, 1, places=8))
def test_percentages_are_rounded_up(share):
    assert 0 <= Decimal(percent_up(share).rstrip("%")) - 100 * share < Decimal("0.1")


@pytest.mark.parametrize(("power", "shown"), [(9, "10⁹"), (-12, "10⁻¹²"), (0, "10⁰")])
def test_powers_are_raised(power, shown):
    assert power_of_ten(power) == shown
