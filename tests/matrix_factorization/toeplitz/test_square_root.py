"""Square roots of workloads, compared with exact fractions and the published closed form."""

import math
from fractions import Fraction

import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import toeplitz


def exact_coefs(n):
    return [Fraction(math.comb(2 * k, k), 4**k) for k in range(n)]


def closed_form(n):
    """Sum of the squares of the first n coefficients, to O(n^-3)."""
    constant = np.euler_gamma + math.log(16)
    return (math.log(n) + constant - 1 / (4 * n) + 5 / (192 * n**2)) / math.pi


def test_coefficients_are_those_of_the_square_root():
    got = toeplitz.optimal_max_error_strategy_coefs(300)
    np.testing.assert_allclose(got, [float(c) for c in exact_coefs(300)], rtol=1e-13)
    assert got.dtype == np.float64


@pytest.mark.parametrize("n", [1, 2, 5, 200])
def test_the_square_is_prefix_sums_and_the_inverse_is_the_noise(n):
    C = toeplitz.materialize_lower_triangular(toeplitz.optimal_max_error_strategy_coefs(n))
    inverse = toeplitz.materialize_lower_triangular(toeplitz.optimal_max_error_noising_coefs(n))
    np.testing.assert_allclose(C @ C, np.tril(np.ones((n, n))), atol=1e-13)
    np.testing.assert_allclose(C @ inverse, np.eye(n), atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 64])
def test_max_error_is_the_exact_one(n):
    coefs = toeplitz.optimal_max_error_strategy_coefs(n)
    exact = float(sum(c * c for c in exact_coefs(n)))
    errors = toeplitz.per_query_error(strategy_coef=coefs)
    assert max(errors) == pytest.approx(exact, rel=1e-12)
    assert toeplitz.sensitivity_squared(coefs) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("n", [100, 1000, 10**4])
def test_max_error_is_within_1e_6_of_its_closed_form(n):
    coefs = toeplitz.optimal_max_error_strategy_coefs(n)
    errors = toeplitz.per_query_error(strategy_coef=coefs)
    assert abs(max(errors) - closed_form(n)) < 1e-6
    assert abs(toeplitz.loss(coefs, reduction_fn=max_of) - closed_form(n) ** 2) < 1e-6


def max_of(x):
    return x.max()


@pytest.mark.parametrize("n", [10**5, 10**6])
def test_the_sum_of_squares_is_right_for_long_runs(n):
    total = toeplitz.optimal_max_error_strategy_coefs(
        n
    ) @ toeplitz.optimal_max_error_strategy_coefs(n)
    assert abs(total - closed_form(n)) < 1e-9


@pytest.mark.parametrize("workload", [[1.0], [2.0, 1.0], [1.0, 0.9, 0.81, 0.729], np.ones(9)])
def test_bisr_of_any_workload_is_its_inverse_root(workload):
    root = toeplitz.banded_inverse_square_root_noising_coefs(6, workload)
    squared = toeplitz.multiply(root, root, 6)
    np.testing.assert_allclose(toeplitz.multiply(squared, workload, 6), np.eye(6)[0], atol=1e-13)


def test_bisr_of_prefix_sums_truncates_the_noising_coefficients():
    full = toeplitz.optimal_max_error_noising_coefs(9)
    got = toeplitz.banded_inverse_square_root_noising_coefs(4)
    np.testing.assert_array_equal(got, full[:4])
    same = toeplitz.banded_inverse_square_root_noising_coefs(4, np.ones(2 * 4))
    np.testing.assert_allclose(same, full[:4], rtol=1e-14)


@pytest.mark.parametrize("n", [0, -1, 2.0])
def test_sizes_are_checked(n):
    for function in (
        toeplitz.optimal_max_error_strategy_coefs,
        toeplitz.optimal_max_error_noising_coefs,
        toeplitz.banded_inverse_square_root_noising_coefs,
    ):
        with pytest.raises(FixArgumentsError, match="an integer"):
            function(n)


@pytest.mark.parametrize("workload", [[0.0, 1.0], [-1.0]])
def test_a_workload_without_a_root_is_rejected(workload):
    with pytest.raises(FixArgumentsError, match="positive diagonal"):
        toeplitz.banded_inverse_square_root_noising_coefs(3, workload)
