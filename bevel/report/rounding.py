"""Rounds the numbers of a report up, so that they never promise more than was computed."""

import math
from decimal import ROUND_CEILING, Decimal

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def shown_epsilon(epsilon: float) -> str:
    """Epsilon with four digits, rounded up, because a smaller epsilon would be a false claim."""
    if math.isinf(epsilon):
        return "∞"
    return rounded_up(Decimal(epsilon), 4) if epsilon else "0"


def shown_delta(delta: float) -> str:
    """Delta with six digits, rounded up. A short decimal is shown as the user wrote it: 1e-05."""
    # repr gives the shortest decimal of the float, whose binary value may be slightly larger.
    up = Decimal(rounded_up(Decimal(repr(delta)), 6))
    return f"{float(up):g}"


def rounded_up(value: Decimal, digits: int) -> str:
    if not value:
        return "0"
    last = Decimal(1).scaleb(value.adjusted() - digits + 1)
    text = f"{value.quantize(last, rounding=ROUND_CEILING):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent_up(share: Decimal) -> str:
    """A share as a percentage with one digit after the point, rounded up."""
    return f"{(100 * share).quantize(Decimal('0.1'), rounding=ROUND_CEILING)}%"


def power_of_ten(power: int) -> str:
    return "10" + str(power).translate(SUPERSCRIPTS)
