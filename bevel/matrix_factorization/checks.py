"""Arguments that many of these modules take, checked in one place."""

from typing import Any

import jax
import numpy as np

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


def checked_steps(n: Any, name: str = "n", least: int = 1) -> Any:
    """A count that may also be traced: then it is not known yet and passes."""
    return n if isinstance(n, jax.core.Tracer) else whole_number(name, n, least)


def checked_bands(bands: Any, n: int) -> int:
    """The number of diagonals of an n x n matrix: from 1, the diagonal alone, to n."""
    bands = whole_number("bands", bands)
    if bands > n:
        raise FixArgumentsError(
            f"bands={bands} for n={n}: an n x n lower triangular matrix has n diagonals. "
            f"Write at most {n}."
        )
    return bands


def checked_coefs(coef: Any, name: str) -> Any:
    """First column of a Toeplitz matrix: one dimension, not empty, finite. Traced values pass."""
    shape = np.shape(coef)
    if len(shape) != 1 or shape[0] < 1:
        raise FixArgumentsError(
            f"{name} has shape {shape}: write the first column of the Toeplitz matrix, one number "
            "for each diagonal."
        )
    return checked_finite(coef, name)


def checked_square(matrix: Any, name: str) -> Any:
    """A finite square matrix that is not empty."""
    shape = np.shape(matrix)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise FixArgumentsError(f"{name} has shape {shape}: write a square matrix, one row a step.")
    return checked_finite(matrix, name)


def checked_lower_triangular(matrix: Any, name: str) -> Any:
    """A square matrix without an entry above the diagonal: step i may not use later steps."""
    checked_square(matrix, name)
    if isinstance(matrix, jax.core.Tracer):
        return matrix
    above = np.argwhere(np.triu(np.asarray(matrix), 1) != 0)
    if above.size:
        row, column = above[0]
        raise FixArgumentsError(
            f"{name}[{row}, {column}] = {np.asarray(matrix)[row, column]} is above the diagonal: "
            f"step {row} would need the noise or the gradient of step {column}. Write a lower "
            f"triangular matrix, np.tril({name}) if the rest is rounding."
        )
    return matrix


def checked_finite(values: Any, name: str) -> Any:
    """Numbers without NaN or infinity. Traced values pass: they are not known yet."""
    if isinstance(values, jax.core.Tracer):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise FixArgumentsError(f"{name} has dtype {array.dtype}: write real numbers.")
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        place = "".join(f"[{i}]" for i in bad[0])
        raise FixArgumentsError(
            f"{name}{place} is {array[tuple(bad[0])]}: a sensitivity or error computed from it "
            "would be no number. Write finite numbers."
        )
    return values
