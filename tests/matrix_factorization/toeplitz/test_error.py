"""Errors of Toeplitz strategies against dense matrices."""

import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import dense, toeplitz

COEF = np.array([1.0, 0.5, -0.25])
N = 6


def row_norms_squared(noising, workload):
    return ((workload @ noising) ** 2).sum(1)


@pytest.mark.parametrize("workload", [None, [1.0, 0.5], np.arange(1.0, 9.0)])
def test_errors_are_the_rows_of_the_decoder(workload):
    A = toeplitz.materialize_lower_triangular(np.ones(N) if workload is None else workload, N)
    C = toeplitz.materialize_lower_triangular(COEF, N)
    got = toeplitz.per_query_error(strategy_coef=COEF, n=N, workload_coef=workload)
    np.testing.assert_allclose(got, row_norms_squared(np.linalg.inv(C), A), rtol=1e-12)
    np.testing.assert_allclose(
        got, dense.per_query_error(strategy_matrix=C, workload_matrix=A), rtol=1e-12
    )
    noised = toeplitz.per_query_error(noising_coef=COEF, n=N, workload_coef=workload)
    np.testing.assert_allclose(noised, row_norms_squared(C, A), rtol=1e-12)


def test_there_are_as_many_queries_as_coefficients_by_default():
    assert toeplitz.per_query_error(strategy_coef=COEF).shape == (3,)
    assert toeplitz.per_query_error(noising_coef=COEF).shape == (3,)


def test_independent_noise_has_an_error_for_each_step():
    np.testing.assert_array_equal(toeplitz.per_query_error(strategy_coef=[1.0], n=4), [1, 2, 3, 4])
    assert toeplitz.loss([1.0], 4) == 2.5
    assert toeplitz.loss([1.0], 4, jnp.max) == 4


def test_the_loss_does_not_depend_on_the_scale():
    losses = [toeplitz.loss(scale * COEF, N) for scale in (1.0, 7.0, -1e-3)]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-13)


def test_exactly_one_matrix_is_given():
    for given in ({}, {"strategy_coef": COEF, "noising_coef": COEF}):
        with pytest.raises(FixArgumentsError, match="either"):
            toeplitz.per_query_error(**given)


def test_bad_input():
    for given, message in [
        ({"strategy_coef": [0.0, 1.0]}, "no inverse"),
        ({"strategy_coef": [1.0, np.nan]}, r"strategy_coef\[1\]"),
        ({"noising_coef": []}, "noising_coef"),
        ({"noising_coef": COEF, "n": 0}, "n="),
        ({"noising_coef": COEF, "workload_coef": [np.inf]}, "inf"),
    ]:
        with pytest.raises(FixArgumentsError, match=message):
            toeplitz.per_query_error(**given)
