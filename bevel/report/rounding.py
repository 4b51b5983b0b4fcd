"""Rounds percentages of a report up, so that they never promise more than was computed."""

from decimal import ROUND_CEILING, Decimal

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent_up(share: Decimal) -> str:
    """A share as a percentage with one digit after the point, rounded up."""
    return f"{(100 * share).quantize(Decimal('0.1'), rounding=ROUND_CEILING)}%"


def power_of_ten(power: int) -> str:
    return "10" + str(power).translate(SUPERSCRIPTS)
