"""Checks of common arguments, which return plain ints and floats, and parts of their messages."""

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

from bevel.errors import FixArgumentsError


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Returns `value` as an int; raises unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise FixArgumentsError(f"{name}={value!r}: pass an integer of at least {least}.")
    return int(value)


def probability(name: str, value: Any) -> float:
    """Returns `value` as a float; raises unless it is between 0 and 1."""
    if not (is_real(value) and 0 <= value <= 1):
        raise FixArgumentsError(
            f"{name}={value!r} is not a probability: pass a number between 0 and 1, usually the "
            "expected batch size divided by the number of examples."
        )
    return float(value)


def positive_number(name: str, value: Any, hint: str) -> float:
    """Returns `value` as a float; raises, with a hint, unless it is positive and finite."""
    # No np.float32, because callers store the value, and would then compute in float32.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise FixArgumentsError(f"{name}={value!r}: pass a positive number, {hint}.")
    return float(value)


def in_one_line(text: object, limit: int = 200) -> str:
    """Text of unknown length, such as a tree or another error, as one short line of a message."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit - 4]} ..."


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: '. Did you mean ...?' if a known name is similar, else a full stop."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f". Did you mean {matches[0]!r}?" if matches else "."


def is_real(value: Any) -> bool:
    """Returns whether `value` is a real number other than a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
