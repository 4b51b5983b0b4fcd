"""Square roots of Toeplitz workloads in closed form (NumPy, float64).

The series of prefix sums is 1 / (1 - x). Its square root (1 - x)^(-1/2) is the Toeplitz factor C
with the smallest maximum error for one participation, and C^-1 has the series (1 - x)^(1/2).
"""

from typing import Any

import numpy as np

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import checked_coefs, checked_length, checked_rows


def optimal_max_error_strategy_coefs(n: int) -> np.ndarray:
    """The first n coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ...

    The decoder equals C (C C = prefix sums), so the largest squared error equals the squared
    sensitivity. Their product is (sum of squared coefficients)^2, which grows as (log(n) / pi)^2.
    """
    k = np.arange(1, checked_length(n))
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


def optimal_max_error_noising_coefs(n: int) -> np.ndarray:
    """The first n coefficients of (1 - x)^(1/2), the inverse: 1, -1/2, -1/8, ..."""
    return optimal_max_error_strategy_coefs(n) / (1 - 2 * np.arange(n))


def banded_inverse_square_root_noising_coefs(num_bands: int, workload_coef: Any = None) -> Any:
    """Noising coefficients of BISR: A^(-1/2) truncated to `num_bands` (Kalinin et al., 2025).

    C^-1 is banded, so noise needs only the last `num_bands - 1` draws, while C has all diagonals.
    Compute the sensitivity with `compute_banded_inverse_sensitivity_squared`.

    Args:
      num_bands: 1 is independent noise.
      workload_coef: first column of the Toeplitz workload A, prefix sums by default. The first
        number must be positive; missing numbers are zero.
    """
    num_bands = checked_length(num_bands, "num_bands")
    if workload_coef is None:
        return optimal_max_error_noising_coefs(num_bands)
    checked_rows(num_bands, "num_bands")  # takes a step for each band before
    coef = np.asarray(checked_coefs(workload_coef, "workload_coef"), float)[:num_bands]
    if coef[0] <= 0:
        raise FixArgumentsError(
            f"workload_coef[0] is {coef[0]}: pass a workload with a positive diagonal, because "
            "others have no square root."
        )
    workload = np.pad(coef, (0, num_bands - len(coef)))
    # f = w^p satisfies w f' = p w' f, a recurrence for the coefficients of f.
    power = -0.5
    root = np.zeros(num_bands)
    root[0] = workload[0] ** power
    for k in range(1, num_bands):
        i = np.arange(1, k + 1)
        root[k] = np.sum((power * i - (k - i)) * workload[i] * root[k - i]) / (k * workload[0])
    return root
