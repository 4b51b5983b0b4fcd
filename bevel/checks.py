"""Checks of arguments that many functions take. Each returns the value in its plain type."""

import math
import numbers
import operator
from typing import Any

import numpy as np

from bevel.errors import FixArgumentsError


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_) or number < least:
        raise FixArgumentsError(f"{name}={value!r}: give a whole number of at least {least}.")
    return number


def probability(name: str, value: Any) -> float:
    """`value` as a float from 0 to 1."""
    if not (is_real(value) and 0 <= value <= 1):
        raise FixArgumentsError(
            f"{name}={value!r} is not a probability: give a number between 0 and 1, usually the "
            "expected batch size divided by the number of examples."
        )
    return float(value)


def positive_number(name: str, value: Any, hint: str) -> float:
    """`value` as a positive, finite float. `hint` completes "give a positive number, ..."."""
    if not (is_real(value) and 0 < value < math.inf):
        raise FixArgumentsError(f"{name}={value!r}: give a positive number, {hint}.")
    return float(value)


def is_real(value: Any) -> bool:
    """Whether a value is a real number, and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
