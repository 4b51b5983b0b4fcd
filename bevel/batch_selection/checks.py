"""Numbers as a user writes them, checked where they come in."""

import math
import numbers
from typing import Any

from bevel.errors import FixArgumentsError


def whole(name: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise FixArgumentsError(f"{name}={value!r}: give a whole number of at least {least}.")
    return int(value)


def probability(name: str, value: Any) -> float:
    """`value` as a float in [0, 1]."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and math.isfinite(value) and 0 <= value <= 1):
        raise FixArgumentsError(
            f"{name}={value!r} is no probability: give a number between 0 and 1, usually the "
            "expected batch size divided by the number of examples."
        )
    return float(value)
