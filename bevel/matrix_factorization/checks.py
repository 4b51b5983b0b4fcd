"""Argument checks shared by the matrix factorization modules. Each returns its argument."""

from typing import Any

import jax
import numpy as np

from bevel.checks import shown, whole_number, without_mask
from bevel.errors import FixArgumentsError

# An analysis of n steps holds several arrays of n float64 numbers, and takes seconds for as many as
# this. An n x n matrix takes 2 GB.
MOST_STEPS = 10**7
MOST_ROWS = 2**14


def checked_steps(n: Any, name: str = "n", least: int = 1) -> Any:
    """Checks a count. Traced values pass, because they are not known yet."""
    return n if isinstance(n, jax.core.Tracer) else whole_number(name, n, least)


def checked_length(n: Any, name: str = "n") -> int:
    """Checks the number of steps of an analysis that holds a number for each."""
    why = "The analysis of correlated noise holds several numbers for each step."
    return whole_number(name, n, 1, MOST_STEPS, why)


def checked_rows(n: Any, name: str = "n") -> int:
    """Checks the number of steps of an analysis that holds an n x n matrix."""
    why = "This holds n x n numbers. For more steps use a Toeplitz matrix or a BLT."
    return whole_number(name, n, 1, MOST_ROWS, why)


def checked_bands(bands: Any, n: int) -> int:
    """Checks the number of diagonals of an n x n matrix: from 1, the diagonal alone, to n."""
    bands = whole_number("bands", bands)
    if bands > n:
        raise FixArgumentsError(
            f"bands={bands} for n={n}: a lower triangular n x n matrix has n diagonals. "
            f"Pass at most {n}."
        )
    return bands


def shape_of(values: Any, name: str) -> tuple[int, ...]:
    """The shape of an array or of nested lists; raises if there is none."""
    without_mask(name, values)
    try:
        return np.shape(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise FixArgumentsError(f"{name} is {shown(values)}: pass an array of numbers.") from error


def checked_coefs(coef: Any, name: str) -> Any:
    """Checks the first column of a Toeplitz matrix: 1-D, not empty and finite."""
    shape = shape_of(coef, name)
    if len(shape) != 1 or shape[0] < 1:
        raise FixArgumentsError(
            f"{name} has shape {shape}: pass the first column of the Toeplitz matrix, one number "
            "for each diagonal."
        )
    return checked_finite(coef, name)


def checked_square(matrix: Any, name: str) -> Any:
    """Checks that a matrix is square, finite and not empty."""
    shape = shape_of(matrix, name)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise FixArgumentsError(
            f"{name} has shape {shape}: pass a square matrix with one row per step."
        )
    return checked_finite(matrix, name)


def checked_lower_triangular(matrix: Any, name: str) -> Any:
    """Checks that a matrix is lower triangular: a step must not depend on later steps."""
    checked_square(matrix, name)
    if isinstance(matrix, jax.core.Tracer):
        return matrix
    above = np.argwhere(np.triu(np.asarray(matrix), 1) != 0)
    if above.size:
        row, column = above[0]
        raise FixArgumentsError(
            f"{name}[{row}, {column}] = {np.asarray(matrix)[row, column]} is above the diagonal: "
            f"step {row} would depend on the later step {column}. Pass a lower triangular matrix, "
            f"such as np.tril({name}) if the entry is a rounding error."
        )
    return matrix


def checked_finite(values: Any, name: str) -> Any:
    """Checks that values are real and finite. Traced values pass: they are not known yet."""
    if isinstance(values, jax.core.Tracer):
        return values
    shape_of(values, name)
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" and "float" not in array.dtype.name:
        raise FixArgumentsError(f"{name} has dtype {array.dtype}: pass real numbers.")
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        index = "".join(f"[{i}]" for i in bad[0])
        raise FixArgumentsError(f"{name}{index} is {array[tuple(bad[0])]}: pass finite numbers.")
    return values
