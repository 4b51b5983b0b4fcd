"""Sensitivity and error of BLTs in O(log n) instead of O(n) sums over the coefficients.

Concrete values are computed by NumPy in float64, traced values by JAX.
"""

from typing import Any

import numpy as np

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import sensitivity
from bevel.matrix_factorization.buffered_toeplitz.blt import (
    BufferedToeplitz,
    require_buf_decay_less_eq_one,
    require_output_scale_gt_zero,
)
from bevel.matrix_factorization.buffered_toeplitz.sums import geometric_sum, pair_sums
from bevel.matrix_factorization.checks import checked_length, checked_steps
from bevel.matrix_factorization.optimization import namespace


@require_buf_decay_less_eq_one
def sensitivity_squared(blt: BufferedToeplitz, n: Any) -> Any:
    """Squared sensitivity if every example takes part once: the squared norm of column 0."""
    return _column_norm_squared(blt, checked_steps(n))


@require_buf_decay_less_eq_one
@require_output_scale_gt_zero
def minsep_sensitivity_squared(
    blt: BufferedToeplitz, n: int, min_sep: int, max_participations: int | None = None
) -> Any:
    """Squared sensitivity if the steps of an example are at least `min_sep` apart.

    Exact if the scales sum to at most 1, so that coefficients do not grow. Other BLTs raise an
    error, because the result could be too low. Takes O(participations) memory.
    """
    theta, omega = blt.as_floats()
    times = sensitivity.minsep_true_max_participations(n, min_sep, max_participations)
    xp = namespace(theta, omega)
    if times:
        checked_length(times, "max_participations")
    if times == 0:
        return xp.zeros(())
    if xp is np and omega.sum() > 1 + 1e-9:
        raise FixArgumentsError(
            f"output_scale sums to {omega.sum()}, above 1, so the coefficients of C grow after the "
            "first and the worst steps are not known. Scale it down, or use the upper bound "
            "toeplitz.minsep_sensitivity_squared(blt.toeplitz_coefs(n), ...)."
        )
    # The example joins steps 0, min_sep, ... After each join, the sum of its columns is a sum of
    # decaying buffers; row m of `weights` holds their weights after m + 1 joins.
    joins = xp.arange(times, dtype=float)[:, None]
    weights = geometric_sum(omega[None, :], (theta**min_sep)[None, :], joins + 1)
    products = xp.outer(theta, theta)
    between = geometric_sum(1.0, products, float(min_sep))
    after = geometric_sum(1.0, products, float(n - 1 - (times - 1) * min_sep))
    squares = xp.einsum("mi,ij,mj->", weights[:-1], between, weights[:-1])
    squares += xp.einsum("i,ij,j->", weights[-1], after, weights[-1])
    # Each joined step adds the 1 on the diagonal of C to the buffers.
    diagonal_terms = 2 * xp.sum(weights[:-1] * (theta ** (min_sep - 1))[None, :]) + times
    return squares + diagonal_terms


def robust_max_error_Gamma_j(omega: Any, theta: Any, n: Any) -> Any:
    """Sum over t < n of omega (1 + theta + ... + theta^(t-1)), accurate also near theta = 1."""
    return _as_floats(omega) * pair_sums(theta, theta, checked_steps(n)).once[1]


def robust_max_error_Gamma_jk(omega1: Any, theta1: Any, omega2: Any, theta2: Any, n: Any) -> Any:
    """Sum over t < n of products of two such terms, accurate also near theta = 1."""
    sums = pair_sums(theta1, theta2, checked_steps(n)).once
    return _as_floats(omega1) * _as_floats(omega2) * sums[3]


@require_buf_decay_less_eq_one
def iteration_error(inv_blt: BufferedToeplitz, i: Any) -> Any:
    """Squared error of the prefix sum at step i (from 0), for noise of variance 1."""
    return max_error(inv_blt, checked_steps(i, "i", least=0) + 1)


@require_buf_decay_less_eq_one
def max_error(inv_blt: BufferedToeplitz, n: Any) -> Any:
    """The largest squared error of n prefix sums, which is that of the last one."""
    n = checked_steps(n)
    return _row_norm_squared(inv_blt, n, _pair_sums_of(inv_blt, n).once)


@require_buf_decay_less_eq_one
def mean_error(inv_blt: BufferedToeplitz, n: Any) -> Any:
    """The mean squared error of n prefix sums."""
    n = checked_steps(n)
    sums = _pair_sums_of(inv_blt, n).twice
    return _row_norm_squared(inv_blt, n * (n + 1) / 2, sums) / n


@require_buf_decay_less_eq_one
def limit_max_error(inv_blt: BufferedToeplitz) -> Any:
    """The limit of max_error / n for large n: the squared response of C^-1 to a constant."""
    theta, omega = inv_blt.as_floats()
    return (1 + namespace(theta, omega).sum(geometric_sum(omega, theta))) ** 2


@require_buf_decay_less_eq_one
def max_loss(blt: BufferedToeplitz, n: Any) -> Any:
    """Largest squared error times squared sensitivity if every example takes part once."""
    return max_error(blt.inverse(), n) * sensitivity_squared(blt, n)


@require_buf_decay_less_eq_one
def limit_max_loss(blt: BufferedToeplitz) -> Any:
    """The limit of max_loss / n for large n. Infinite or NaN if a decay is 1."""
    return limit_max_error(blt.inverse()) * _column_norm_squared(blt, np.inf)


def _column_norm_squared(blt: BufferedToeplitz, n: Any) -> Any:
    theta, omega = blt.as_floats()
    xp = namespace(theta, omega)
    return 1 + xp.sum(geometric_sum(xp.outer(omega, omega), xp.outer(theta, theta), n - 1))


def _as_floats(x: Any) -> Any:
    return namespace(x).asarray(x, float)


def _pair_sums_of(inv_blt: BufferedToeplitz, n: Any) -> Any:
    theta, _ = inv_blt.as_floats()
    return pair_sums(theta[:, None], theta[None, :], n)


def _row_norm_squared(inv_blt: BufferedToeplitz, terms: Any, sums: tuple[Any, ...]) -> Any:
    """Sum of (1 + omega . s[t])^2 over t, from sums of 1, of s and of products of two s."""
    _, omega = inv_blt.as_floats()
    _, single, _, pairs = sums
    xp = namespace(omega, *sums)
    linear = xp.sum(omega * xp.diagonal(single))
    return terms + 2 * linear + xp.einsum("i,ij,j->", omega, pairs, omega)
