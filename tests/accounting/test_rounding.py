"""Epsilon and delta are written in a few digits, and never below what holds."""

import math
from decimal import Decimal

import hypothesis
from hypothesis import strategies as st

from bevel.accounting.rounding import rounded_up, shown_delta, shown_epsilon


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
