"""Checks of common arguments, which return plain Python values, and parts of their messages."""

import difflib
import math
import numbers
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bevel.errors import FixArgumentsError

# float64, in which sizes are divided and multiplied, holds every integer up to this one. Indices
# are int64, so this is also far below what overflows.
LARGEST = 2**53
_LONGEST_NAME = 255  # of a file, in all usual file systems


def whole_number(name: str, value: Any, least: int = 1, most: int = LARGEST, why: str = "") -> int:
    """Returns `value` as an int; raises unless it is an integer from `least` to `most`.

    `why` is a sentence that says where the upper bound comes from.
    """
    # A np.timedelta64 is an integer for numpy, and a bool for Python.
    integral = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.timedelta64)
    if not integral or value < least:
        raise FixArgumentsError(f"{name}={shown(value)}: pass an integer of at least {least}.")
    if value > most:
        why = why or "Larger numbers are not exact in float64."
        raise FixArgumentsError(
            f"{name}={shown(value)}: pass an integer from {least} to {most}. {why}"
        )
    return int(value)


def probability(name: str, value: Any) -> float:
    """Returns `value` as a float; raises unless it is between 0 and 1."""
    if not (is_real(value) and 0 <= value <= 1):
        raise FixArgumentsError(
            f"{name}={shown(value)} is not a probability: pass a number between 0 and 1, usually "
            "the expected batch size divided by the number of examples."
        )
    return float(value)


def positive_number(name: str, value: Any, hint: str) -> float:
    """Returns `value` as a float; raises, with a hint, unless it is positive and finite."""
    # No np.float32, because callers store the value, and would then compute in float32.
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not (plain and 0 < as_float(value) < math.inf):
        raise FixArgumentsError(f"{name}={shown(value)}: pass a positive number, {hint}.")
    return float(value)


def finite_number(
    name: str, value: Any, hint: str, least: float = -math.inf, most: float = math.inf
) -> float:
    """Returns `value` as a float; raises, with a hint, unless it is finite and within the bounds.

    Numbers of NumPy are taken too. Store what this returns: a np.float32 would compute in float32.
    """
    number = as_float(value) if is_real(value) else math.nan
    if not (math.isfinite(number) and least <= number <= most):
        bounds = {
            (False, False): "a finite number",
            (True, False): f"a finite number of at least {least:g}",
            (False, True): f"a finite number of at most {most:g}",
            (True, True): f"a number from {least:g} to {most:g}",
        }[least > -math.inf, most < math.inf]
        raise FixArgumentsError(f"{name}={shown(value)}: pass {bounds}, {hint}.")
    return number


def flag(name: str, value: Any) -> bool:
    """Returns `value` as a bool; raises for others, even if they are truthy or falsy."""
    if not isinstance(value, bool | np.bool_):
        raise FixArgumentsError(f"{name}={shown(value)}: pass True or False.")
    return bool(value)


def one_of(name: str, value: Any, names: Sequence[str], why: str = "") -> str:
    """Returns `value`; raises unless it is one of these strings. `why` ends the message."""
    if not (isinstance(value, str) and value in names):
        *most, last = map(repr, names)
        known = f"{', '.join(most)} or {last}" if most else last
        raise FixArgumentsError(f"{name}={shown(value)}: write {known}.{why and f' {why}'}")
    return value


def text(name: str, value: Any, hint: str = "pass a string that is not empty") -> str:
    """Returns `value`; raises, with a hint, unless it is a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise FixArgumentsError(f"{name}={shown(value)}: {hint}.")
    return value


def path(name: str, value: Any) -> str | os.PathLike[str]:
    """Returns `value`; raises unless it is a path or a string that can be one."""
    readable = isinstance(value, str | os.PathLike)
    written = str(value) if readable else ""
    if not written or "\0" in written or max(map(len, written.split(os.sep))) > _LONGEST_NAME:
        raise FixArgumentsError(f"{name}={shown(value)}: pass a path.")
    return value


def function(name: str, value: Any, hint: str = "pass a function") -> Callable[..., Any]:
    """Returns `value`; raises, with a hint, unless it can be called."""
    if not callable(value):
        raise FixArgumentsError(f"{name}={shown(value)}: {hint}.")
    return value


def instance(name: str, value: Any, kinds: Any, hint: str) -> Any:
    """Returns `value`; raises, with what to pass instead, unless it is of these classes."""
    if not isinstance(value, kinds):
        raise FixArgumentsError(f"{name}={shown(value)}: pass {hint}.")
    return value


def without_mask(name: str, value: Any) -> Any:
    """Returns `value`; raises for a masked array, whose mask bevel would have to ignore."""
    if isinstance(value, np.ma.MaskedArray):
        raise FixArgumentsError(
            f"{name} is a masked array, and its masked entries would be used as if they were data. "
            "Drop them, or pass array.filled(value) with a value that is right for them."
        )
    return value


def integers(name: str, value: Any, ndim: int = 1) -> np.ndarray:
    """Returns `value` as an array of integers; raises for other dtypes, masks and dimensions.

    Memory-mapped arrays stay on disk. The dtype is kept.
    """
    without_mask(name, value)
    try:
        array = np.asanyarray(value)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0, object)
    if array.dtype == np.float64 and not array.size:
        array = array.astype(np.int64)  # np.array([]) is float64
    if array.dtype.kind not in "iu" or array.ndim != ndim:
        raise FixArgumentsError(
            f"{name} has dtype {array.dtype} and shape {array.shape}: pass a {ndim}-D array of "
            "integers."
        )
    return array


def reals(
    name: str, value: Any, ndim: tuple[int, ...] = (1,), hint: str = "pass real numbers"
) -> np.ndarray:
    """Returns `value` as an array of finite real numbers; raises for masks and other dtypes."""
    without_mask(name, value)
    try:
        array = np.asarray(value)
        if not array.size and array.dtype != object:
            array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.empty((), object)
    # bfloat16 and other dtypes that NumPy does not know have the kind of raw bytes.
    known = array.dtype.kind in "fiu" or "float" in array.dtype.name
    if not known or array.ndim not in ndim:
        raise FixArgumentsError(
            f"{name} has dtype {array.dtype} and shape {array.shape}: {hint}, as a "
            f"{' or '.join(map(str, ndim))}-D array."
        )
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        index = "".join(f"[{i}]" for i in bad[0])
        raise FixArgumentsError(f"{name}{index} is {array[tuple(bad[0])]}: {hint}, all finite.")
    return array


def ids(name: str, value: Any) -> np.ndarray:
    """Returns `value` as a 1-D array of ids, which are integers, strings, or other finite numbers.

    A missing id, such as NaN or None, is an error: all of them would count as one unit.
    """
    without_mask(name, value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        array = np.empty((), object)
    if array.ndim != 1:
        raise FixArgumentsError(
            f"{name} has shape {array.shape}: pass a 1-D array with one id per example."
        )
    missing = array[:0]
    if array.dtype.kind == "f":
        missing = np.flatnonzero(~np.isfinite(array))
    elif array.dtype.kind == "O":
        known = [isinstance(item, str | int) and not isinstance(item, bool) for item in array]
        missing = np.flatnonzero(~np.array(known, bool))
        if not missing.size and len(set(map(type, array))) > 1:
            missing = np.arange(1)  # a mixture of strings and integers has no order
    elif array.dtype.kind not in "iuSU":
        missing = np.arange(min(1, array.size))
    if missing.size:
        raise FixArgumentsError(
            f"{name} has dtype {array.dtype}, and {shown(array[missing[0]])} at {missing[0]}: pass "
            "integers or strings, and leave out examples whose id is not known."
        )
    return array


def shown(value: object, limit: int = 80) -> str:
    """A value as a message quotes it: in one short line, even if it cannot be shown."""
    try:
        written = repr(value)
    except Exception:  # such as that of an int with more than 4,300 digits
        written = f"<{type(value).__name__}>"
    return in_one_line(written, limit)


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
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.timedelta64)


def scalar(value: Any) -> float:
    """A number of Python, NumPy or JAX, or an array without dimensions, as a float; else NaN."""
    if isinstance(value, np.ma.MaskedArray):
        return math.nan
    if is_real(value):
        return as_float(value)
    if getattr(value, "ndim", None) != 0 or isinstance(value, np.timedelta64):
        return math.nan
    try:
        array = np.asarray(value)
        known = array.dtype.kind in "fiu" or "float" in array.dtype.name
        return float(array) if known else math.nan
    except (TypeError, ValueError):  # traced, or a key
        return math.nan


def as_float(value: Any) -> float:
    """A real number as a float; infinite if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
