"""Sensitivity of dense strategy matrices C: how far one example can move C g.

Everything is NumPy in float64. Contributions are vectors of norm at most 1, one for each step that
the example joins. An example that joins the steps u moves C g by at most the square root of the sum
of `|X[i, j]|` over i, j in u, where X = C'C. The sum is over absolute values because two
contributions may point in any direction. The bound is tight if no entry of X is negative.

| participation      | steps u of one example                                                 |
| ------------------ | ---------------------------------------------------------------------- |
| single             | one step                                                               |
| min-sep            | at least `min_sep` apart, at most `max_participations` of them         |
| fixed epoch        | i, i + n / epochs, i + 2 n / epochs, ...: the same order in each epoch |
"""

import collections
from typing import Any

import numpy as np

from bevel.checks import is_real, whole_number
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import checked_finite, checked_rows, checked_square, shape_of


def single_participation_sensitivity(C: np.typing.ArrayLike) -> float:
    """The largest column norm. C may have any number of rows."""
    return float(np.max(np.linalg.norm(_checked_matrix(C), axis=0)))


def minsep_true_max_participations(
    n: int, min_sep: int, max_participations: int | None = None
) -> int:
    """The largest number of participations in n steps that are at least `min_sep` apart.

    `max_participations` may be 0: an example that takes no part moves nothing.
    """
    fit = -(-_positive("n", n) // _positive("min_sep", min_sep))
    if max_participations is None:
        return fit
    return min(fit, whole_number("max_participations", max_participations, 0))


def _positive(name: str, value: Any) -> int:
    if is_real(value) and value <= 0:
        raise FixArgumentsError(f"{name}={value} must be positive: pass an integer of at least 1.")
    return whole_number(name, value)


def max_participation_for_linear_fn(
    x: Any, min_sep: int = 1, max_participations: int | None = None
) -> Any:
    """The largest sum of entries of x, of shape (..., n), that are at least `min_sep` apart.

    The sum is never negative, because it may have no entries. Dynamic programming: O(n) steps on
    arrays of `max_participations` numbers.
    """
    x = np.asarray(checked_finite(x, "x"), float)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise FixArgumentsError(f"x has shape {x.shape}: pass one number for each step.")
    n = x.shape[-1]
    # A separation above n allows a single participation, as n does.
    min_sep = min(_positive("min_sep", min_sep), n)
    times = minsep_true_max_participations(n, min_sep, max_participations)
    limited = times < -(-n // min_sep)
    # best[-1] is the largest sum over x[..., :i], and best[0] that over x[..., :i - min_sep + 1].
    # With a limit, element k is the largest sum of at most k entries.
    zeros = np.zeros((*x.shape[:-1], times + 1) if limited else x.shape[:-1])
    best = collections.deque([zeros] * min_sep, maxlen=min_sep)
    for entry in np.moveaxis(x, -1, 0):
        if limited:
            with_entry = entry[..., None] + best[0][..., :-1]
            larger = np.maximum(best[-1][..., 1:], with_entry)
            best.append(np.concatenate([zeros[..., :1], larger], axis=-1))
        else:
            best.append(np.maximum(best[-1], entry + best[0]))
    return (best[-1][..., -1] if limited else best[-1])[()]


def banded_lower_triangular_mask(n: int, num_bands: int) -> np.ndarray:
    """1.0 on the diagonal and the `num_bands` - 1 diagonals below it, 0.0 elsewhere."""
    ones = np.ones((checked_rows(_positive("n", n)),) * 2)
    return np.tril(np.triu(ones, 1 - _positive("num_bands", num_bands)))


def banded_symmetric_mask(n: int, num_bands: int) -> np.ndarray:
    """1.0 where |i - j| < num_bands, 0.0 elsewhere: the nonzeros of C'C for a banded C."""
    lower = banded_lower_triangular_mask(n, num_bands)
    return np.maximum(lower, lower.T)


def get_min_sep_sensitivity_upper_bound_for_X(
    X: Any, min_sep: int = 1, max_participations: int | None = None
) -> float:
    """Upper bound on the min-sep sensitivity from X = C'C.

    Takes the largest sum of `|X[i, j]|` over steps j that an example could join for every row i,
    then the largest sum of these over i. It is not always tight: rows may choose different steps.
    """
    X = np.abs(_checked_gram(X))
    rows = max_participation_for_linear_fn(X, min_sep, max_participations)
    return float(np.sqrt(max_participation_for_linear_fn(rows, min_sep, max_participations)))


def get_min_sep_sensitivity_upper_bound(
    C: Any, min_sep: int = 1, max_participations: int | None = None
) -> float:
    """Upper bound on the min-sep sensitivity of C."""
    return get_min_sep_sensitivity_upper_bound_for_X(_gram(C), min_sep, max_participations)


def get_sensitivity_banded_for_X(
    X: Any, min_sep: int = 1, max_participations: int | None = None
) -> float:
    """The exact min-sep sensitivity if columns `min_sep` or more apart are orthogonal."""
    X = _checked_gram(X)
    overlaps = np.argwhere(np.triu(X, _positive("min_sep", min_sep)) != 0)
    if overlaps.size:
        i, j = overlaps[0]
        raise FixArgumentsError(
            f"X[{i}, {j}] = {X[i, j]}: columns {min_sep} or more apart are not orthogonal, so "
            "their squared norms do not add. Use get_min_sep_sensitivity_upper_bound_for_X."
        )
    return float(np.sqrt(max_participation_for_linear_fn(np.diag(X), min_sep, max_participations)))


def get_sensitivity_banded(
    C: Any, min_sep: int = 1, max_participations: int | None = None
) -> float:
    """The exact min-sep sensitivity of a C with at most `min_sep` bands."""
    return get_sensitivity_banded_for_X(_gram(C), min_sep, max_participations)


def fixed_epoch_sensitivity_for_X(X: Any, epochs: int) -> float:
    """Sensitivity from X = C'C if every epoch has the same order; epochs must divide n.

    Exact if no entry of X is negative, otherwise an upper bound.
    """
    X = np.abs(_checked_gram(X))
    length = epoch_length(len(X), epochs)
    # Axes: epoch, step in the epoch, epoch, step in the epoch.
    blocks = X.reshape(epochs, length, epochs, length)
    return float(np.sqrt(np.max(np.einsum("aibi->i", blocks))))


def fixed_epoch_sensitivity(C: Any, epochs: int) -> float:
    """Sensitivity of C if every epoch has the same order."""
    return fixed_epoch_sensitivity_for_X(_gram(C), epochs)


def epoch_length(n: int, epochs: int) -> int:
    n, epochs = _positive("n", n), _positive("epochs", epochs)
    if n % epochs:
        raise FixArgumentsError(f"epochs={epochs} must divide n={n}: use epochs of equal length.")
    return n // epochs


def _checked_matrix(C: Any) -> np.ndarray:
    """Returns C as a finite float64 matrix with one column per step."""
    shape = shape_of(C, "C")
    if len(shape) != 2 or 0 in shape:
        raise FixArgumentsError(f"C has shape {shape}: pass a matrix with one column per step.")
    return np.asarray(checked_finite(C, "C"), float)


def _gram(C: Any) -> np.ndarray:
    C = _checked_matrix(C)
    return C.T @ C


def _checked_gram(X: Any) -> np.ndarray:
    """Returns X as a float64 matrix; raises unless it is symmetric with a nonnegative diagonal."""
    X = np.asarray(checked_square(X, "X"), float)
    if not np.allclose(X, X.T, rtol=1e-9, atol=1e-12 * np.abs(X).max()) or np.diag(X).min() < 0:
        raise FixArgumentsError("X is not C'C for any C: pass a symmetric matrix, C.T @ C.")
    return X
