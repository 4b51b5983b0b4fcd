"""Sensitivity of Toeplitz matrices C: how far one example can move C g.

An example that takes part in steps i and j, with contributions of norm 1, moves `C g` by at most
`|C[:, i]|^2 + |C[:, j]|^2 + 2 |C[:, i] . C[:, j]|` (squared).
Concrete values are computed by NumPy in float64, traced values by JAX.
"""

from typing import Any

import jax
import numpy as np

from bevel.checks import flag
from bevel.matrix_factorization import sensitivity
from bevel.matrix_factorization.checks import checked_coefs, checked_length
from bevel.matrix_factorization.optimization import namespace
from bevel.matrix_factorization.toeplitz import series


def column_norms(coef: jax.Array, n: int) -> Any:
    """Norms of the columns of the n x n matrix. The last columns are truncated, so smaller."""
    xp = namespace(coef)
    return xp.sqrt(xp.cumsum(series.pad_coefs_to_n(coef, n) ** 2))[::-1]


def sensitivity_squared(coef: jax.Array, n: int | None = None) -> Any:
    """Squared sensitivity if every example takes part once: the squared norm of column 0."""
    return (series.pad_coefs_to_n(coef, n) ** 2).sum()


def minsep_sensitivity_squared(
    strategy_coef: jax.Array, min_sep: int, *, n: int, max_participations: int | None = None
) -> Any:
    """Squared sensitivity if the steps of an example are at least `min_sep` apart.

    Exact if the coefficients are nonnegative and nonincreasing, or if there are at most `min_sep`
    of them. The worst case is then steps 0, min_sep, 2 min_sep, ... (for nonincreasing coefficients
    see Kalinin and Lampert, 2024). Otherwise it is an upper bound: the sensitivity of the smallest
    nonincreasing coefficients that are at least the absolute values of the given ones.

    Args:
      strategy_coef: first column of C, padded or truncated to n.
      min_sep: 1 allows an example in every step.
      n: number of steps.
      max_participations: None allows as many as fit.
    """
    coef = series.pad_coefs_to_n(strategy_coef, checked_length(n))
    times = sensitivity.minsep_true_max_participations(n, min_sep, max_participations)
    xp = namespace(coef)
    if times == 0:
        return xp.zeros(())
    if np.shape(strategy_coef)[0] > min_sep:
        largest_so_far = np.maximum.accumulate if xp is np else jax.lax.cummax
        coef = largest_so_far(xp.abs(coef)[::-1])[::-1]
    # Row m holds steps m min_sep to (m + 1) min_sep - 1. The example joins the first step of each
    # row, so the sum of its columns is the sum of the coefficients in this row and those before.
    width = min(min_sep, n)
    rows = xp.pad(coef, (0, -n % width)).reshape(-1, width)
    total = xp.cumsum(rows, axis=0)
    total = xp.concatenate([total[:times], total[times:] - total[:-times]])
    return (total.reshape(-1)[:n] ** 2).sum()


def compute_banded_inverse_sensitivity_squared(
    n: int,
    noising_coef: jax.Array,
    min_sep: int,
    max_participations: int | None = None,
    use_matrix_upper_bound: bool = False,
) -> Any:
    """Squared sensitivity of C, where C^-1 is the banded Toeplitz matrix of `noising_coef`.

    This is `minsep_sensitivity_squared` of the coefficients of C. If those grow or are negative,
    `use_matrix_upper_bound=True` may give a tighter bound from the n x n matrix (O(n^2) memory,
    concrete values only).
    """
    coef = series.inverse_coef(checked_coefs(noising_coef, "noising_coef"), checked_length(n))
    if flag("use_matrix_upper_bound", use_matrix_upper_bound):
        matrix = series.materialize_lower_triangular(coef, n)
        bound = sensitivity.get_min_sep_sensitivity_upper_bound
        return bound(matrix, min_sep, max_participations) ** 2
    return minsep_sensitivity_squared(coef, min_sep, n=n, max_participations=max_participations)
