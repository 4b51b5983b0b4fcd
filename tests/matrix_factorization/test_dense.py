"""Dense matrices: errors by definition, and optima that satisfy the optimality conditions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import FULL

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import dense, sensitivity, toeplitz

N = 6
RNG = np.random.default_rng(0)
C = np.tril(RNG.uniform(0.5, 1.5, size=(N, N)))
optimum = functools.cache(dense.optimize)


def best_of_epochs(bands=None, equal_norm=False):
    return optimum(N, epochs=3, bands=bands, equal_norm=equal_norm)


def test_errors_are_the_rows_of_the_decoder():
    prefix = np.tril(np.ones((N, N)))
    expected = ((prefix @ np.linalg.inv(C)) ** 2).sum(1)
    np.testing.assert_allclose(dense.per_query_error(strategy_matrix=C), expected, rtol=1e-10)
    np.testing.assert_allclose(
        dense.per_query_error(noising_matrix=np.linalg.inv(C) * np.tri(N)), expected, rtol=1e-10
    )
    A = RNG.normal(size=(3, N))
    got = dense.per_query_error(strategy_matrix=C, workload_matrix=A)
    np.testing.assert_allclose(got, ((A @ np.linalg.inv(C)) ** 2).sum(1), rtol=1e-10)


def test_a_strategy_from_its_gram_matrix():
    X = C.T @ C
    got = dense.strategy_from_X(X)
    np.testing.assert_allclose(got, C, rtol=1e-8)
    np.testing.assert_allclose(got.T @ got, X, rtol=1e-13)
    assert np.all(np.triu(got, 1) == 0)


def test_the_mask_of_orthogonal_participations():
    np.testing.assert_array_equal(dense.get_orthogonal_mask(3), np.ones((3, 3)))
    np.testing.assert_array_equal(
        dense.get_orthogonal_mask(4, 2),
        [[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]],
    )


def test_one_epoch_satisfies_the_optimality_condition():
    # The gradient of trace(A X^-1 A') with respect to the off-diagonal entries is zero.
    strategy = optimum(N)
    np.testing.assert_allclose(np.linalg.norm(strategy, axis=0), 1, rtol=1e-12)
    X = strategy.T @ strategy
    prefix = np.tril(np.ones((N, N)))
    half = prefix @ np.linalg.inv(X)
    gradient = half.T @ half / N
    np.testing.assert_allclose(gradient - np.diag(np.diag(gradient)), 0, atol=1e-5)
    # The error is no larger than that of a Toeplitz matrix.
    root = toeplitz.optimal_max_error_strategy_coefs(N)
    assert dense.per_query_error(strategy_matrix=strategy).mean() < toeplitz.loss(root)


@pytest.mark.parametrize(
    "equal_norm, bands", [(False, None), (True, 2), *([(False, 2), (True, None)] if FULL else [])]
)
def test_several_epochs_have_sensitivity_one(equal_norm, bands):
    strategy = best_of_epochs(bands=bands, equal_norm=equal_norm)
    assert sensitivity.fixed_epoch_sensitivity(strategy, 3) == pytest.approx(1, rel=1e-9)
    X = strategy.T @ strategy
    np.testing.assert_allclose(X * (1 - dense.get_orthogonal_mask(N, 3)), 0, atol=1e-12)
    norms = np.linalg.norm(strategy, axis=0)
    if equal_norm:
        np.testing.assert_allclose(norms, np.sqrt(1 / 3), rtol=1e-9)
    if bands is not None:
        assert np.all(np.tril(strategy, -bands) == 0)
        # If the order changes between epochs, an example can join columns with larger norms.
        separated = sensitivity.get_sensitivity_banded(strategy, 2)
        assert separated == pytest.approx(1, rel=1e-9) if equal_norm else separated > 1.01


def test_fewer_constraints_give_a_smaller_error():
    errors = [
        dense.per_query_error(strategy_matrix=best_of_epochs(**options)).mean()
        for options in ({"bands": 1, "equal_norm": True}, {"equal_norm": True}, {})
    ]
    assert errors[0] == pytest.approx(3 * (N + 1) / 2, rel=1e-9)  # independent noise
    assert errors[0] > 1.2 * errors[1] > errors[2] and errors[1] > 1.001 * errors[2]


def test_the_largest_error_and_another_workload():
    strategies = [optimum(N), optimum(N, reduction_fn=jnp.max)]
    largest = [dense.per_query_error(strategy_matrix=s).max() for s in strategies]
    assert largest[1] < largest[0]
    # The identity is optimal for the identity workload.
    np.testing.assert_allclose(dense.optimize(4, A=np.eye(4)), np.eye(4), atol=1e-6)


def test_optimization_stops_when_the_gradient_is_small():
    stops = []

    def callback(info):
        stops.append(dense.pg_tol_termination_fn(info))
        return stops[-1]

    dense.optimize(N, callback=callback)
    assert stops[-1] and not any(stops[:-1])
    assert len(stops) < 200


def test_losses_can_be_traced():
    with jax.enable_x64(True):
        got = jax.jit(lambda c: dense.per_query_error(strategy_matrix=c))(C)
        np.testing.assert_allclose(got, dense.per_query_error(strategy_matrix=C), rtol=1e-12)


def test_bad_matrices():
    upper, hole = C.copy(), C.copy()
    upper[0, 1] = 1.0
    hole[2, 2] = 0.0
    for matrix, message in [
        (upper, "above the diagonal"),
        (C[:4], "square"),
        (np.full((2, 2), np.nan), "nan"),
        (hole, "must be invertible"),
    ]:
        for name in ("strategy_matrix", "noising_matrix"):
            with pytest.raises(FixArgumentsError, match=message):
                dense.per_query_error(**{name: matrix})
    for arguments in ({}, {"strategy_matrix": C, "noising_matrix": C}):
        with pytest.raises(FixArgumentsError, match="either"):
            dense.per_query_error(**arguments)
    got = dense.per_query_error(strategy_matrix=upper, skip_checks=True)
    np.testing.assert_array_equal(got, dense.per_query_error(strategy_matrix=C))


def test_bad_input():
    for call, message in [
        (lambda: dense.per_query_error(strategy_matrix=C, workload_matrix=np.ones((2, 3))), "6 co"),
        (lambda: dense.strategy_from_X(-np.eye(2)), "positive definite"),
        (lambda: dense.strategy_from_X(np.ones((2, 3))), "square"),
        (lambda: dense.optimize(0), "n=0"),
        (lambda: dense.optimize(4, epochs=3), "must divide n"),
        (lambda: dense.optimize(4, bands=5), "bands=5"),
        (lambda: dense.optimize(4, A=np.ones((4, 3))), "4 columns"),
        (lambda: dense.get_orthogonal_mask(4, 0), "epochs"),
    ]:
        with pytest.raises(FixArgumentsError, match=message):
            call()
