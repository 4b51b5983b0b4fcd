"""What an argument may be: declared next to each constructor, and never derived from its code.

A domain answers True (must be accepted), False (must be refused with a `BevelError`) or None (both
are fine: nothing is promised, or another argument decides).
"""

import dataclasses
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Verdict = bool | None
# float64 holds every integer up to here, and an int64 index some more.
MOST = 2**53


@dataclasses.dataclass(frozen=True)
class Domain:
    name: str
    judge: Callable[[Any], Verdict]

    def __or__(self, other: "Domain") -> "Domain":
        def judge(value: Any) -> Verdict:
            verdicts = self.judge(value), other.judge(value)
            return True if True in verdicts else None if None in verdicts else False

        return Domain(f"{self.name} or {other.name}", judge)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def integer(least: int = 1, most: int = MOST) -> Domain:
    def judge(value: Any) -> Verdict:
        if _is_bool(value) or not isinstance(value, int | np.integer):
            return False
        if isinstance(value, np.timedelta64):
            return False
        return bool(least <= value <= most)

    return Domain(f"an integer from {least} to {most}", judge)


def number(above: float = -math.inf, below: float = math.inf, closed: str = "") -> Domain:
    """A finite number between two others; `closed` has 'l' or 'r' if these are included."""

    def judge(value: Any) -> Verdict:
        if _is_bool(value) or isinstance(value, np.timedelta64):
            return False
        if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "fiu":
            exact, value = False, value.item()
        elif isinstance(value, numbers.Real):
            exact = isinstance(value, int | float)
        else:
            return None if type(value).__name__ == "Decimal" else False
        if not _finite(value):
            return False
        value = float(value)
        above_it = value > above or ("l" in closed and value == above)
        below_it = value < below or ("r" in closed and value == below)
        if not (above_it and below_it):
            return False
        return True if exact else None

    return Domain(f"a number between {above} and {below}", judge)


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


POSITIVE = number(0)
AT_LEAST_0 = number(0, closed="l")
PROBABILITY = number(0, 1, "lr")
INSIDE = number(0, 1)


def _flag(value: Any) -> Verdict:
    return True if isinstance(value, bool) else None if isinstance(value, np.bool_) else False


FLAG = Domain("a bool", _flag)
NONE = Domain("None", lambda value: value is None)


def optional(domain: Domain) -> Domain:
    return domain | NONE


def one_of(*names: str) -> Domain:
    return Domain(f"one of {names}", lambda value: isinstance(value, str) and value in names)


def instance(*kinds: type) -> Domain:
    return Domain(" or ".join(kind.__name__ for kind in kinds), lambda v: isinstance(v, kinds))


FUNCTION = Domain("a function", lambda value: None if callable(value) else False)
TEXT = Domain("a string that is not empty", lambda v: None if isinstance(v, str) and v else False)
PATH = Domain("a path", lambda v: None if isinstance(v, str | os.PathLike) and str(v) else False)
# Nothing is promised but the kind of error.
ANYTHING = Domain("anything", lambda value: None)


def either(domain: Domain) -> Domain:
    """For arguments that must fit to others: inside the domain, both answers are fine."""
    return Domain(domain.name, lambda value: domain.judge(value) and None)


def sequence(of: Domain, least: int = 0) -> Domain:
    """A list or tuple whose members are in a domain; nothing is promised about arrays."""

    def judge(value: Any) -> Verdict:
        if isinstance(value, np.ma.MaskedArray):
            return False
        if isinstance(value, np.ndarray):
            return None
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
            return None if isinstance(value, range) else False
        if len(value) < least:
            return False
        verdicts = [of.judge(item) for item in value]
        return False if False in verdicts else None if None in verdicts else True

    return Domain(f"a sequence of {of.name}", judge)


def array(kinds: str, ndim: tuple[int, ...] = (1,), least: float = -math.inf) -> Domain:
    """Arrays of these kinds of dtypes, without a mask. Whether a list is taken is not promised."""

    def judge(value: Any) -> Verdict:
        if isinstance(value, np.ma.MaskedArray):
            return False
        if isinstance(value, list | tuple | range):
            return None
        if not isinstance(value, np.ndarray):
            return None if isinstance(value, numbers.Real) and 0 in ndim else False
        if value.dtype.kind not in kinds:
            return None if not value.size else False
        if value.ndim not in ndim:
            return False
        if 0 < value.size < 10**6 and not np.min(value) >= least:
            return False
        return None

    return Domain(f"an array of dtype {kinds}", judge)
