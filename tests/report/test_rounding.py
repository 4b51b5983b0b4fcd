from decimal import Decimal

import hypothesis
import pytest
from hypothesis import strategies as st

from bevel.report.rounding import percent_up, power_of_ten


@hypothesis.given(st.decimals(0, 1, places=8))
def test_percentages_are_rounded_up(share):
    assert 0 <= Decimal(percent_up(share).rstrip("%")) - 100 * share < Decimal("0.1")


@pytest.mark.parametrize(("power", "shown"), [(9, "10⁹"), (-12, "10⁻¹²"), (0, "10⁰")])
def test_powers_are_raised(power, shown):
    assert power_of_ten(power) == shown
