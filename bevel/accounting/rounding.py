"""Writes epsilon and delta in a few digits, rounded up, so that no text promises too much."""

import math
from decimal import ROUND_CEILING, Decimal


def shown_epsilon(epsilon: float, *, digits: int = 4, infinite: str = "∞") -> str:
    """Epsilon with a few digits, rounded up, because a smaller epsilon would be a false claim."""
    if math.isinf(epsilon):
        return infinite
    return rounded_up(Decimal(epsilon), digits) if epsilon else "0"


def shown_delta(delta: float) -> str:
    """Delta, or a number of a budget, with six digits, rounded up. 1e-05 is shown as it is."""
    # repr gives the shortest decimal of the float, whose binary value may be slightly larger.
    up = Decimal(rounded_up(Decimal(repr(delta)), 6))
    return f"{float(up):g}"


def rounded_up(value: Decimal, digits: int) -> str:
    if not value:
        return "0"
    last = Decimal(1).scaleb(value.adjusted() - digits + 1)
    text = f"{value.quantize(last, rounding=ROUND_CEILING):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
