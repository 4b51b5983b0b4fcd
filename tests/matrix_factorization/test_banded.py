"""Banded matrices with columns of norm 1, compared with dense matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import participations
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import banded, dense, sensitivity, streaming_matrix, toeplitz
from bevel.matrix_factorization.banded import ColumnNormalizedBanded

N = 8
optimum = functools.cache(banded.optimize)


def strategy(bands):
    params = np.random.default_rng(0).uniform(0.5, 1.5, size=(N, bands))
    return ColumnNormalizedBanded(params)


@pytest.mark.parametrize("bands", [1, 3, N])
def test_the_matrix_is_banded_with_columns_of_norm_one(bands):
    C = strategy(bands)
    matrix = C.materialize()
    assert (C.n, C.bands) == (N, bands)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=0), 1, rtol=1e-14)
    mask = sensitivity.banded_lower_triangular_mask(N, bands)
    np.testing.assert_array_equal(matrix != 0, mask == 1)
    for j in range(N):
        column = C.params[j, : N - j]
        np.testing.assert_allclose(matrix[j : j + bands, j], column / np.linalg.norm(column))


@pytest.mark.parametrize("bands", [1, 3, N])
def test_the_streaming_inverse(bands):
    C = strategy(bands)
    stream = C.inverse_as_streaming_matrix()
    with jax.enable_x64(True):
        inverse = np.asarray(stream.materialize(N))
    np.testing.assert_allclose(inverse @ C.materialize(), np.eye(N), atol=1e-13)
    past_the_end = stream @ np.ones(N + 2, np.float32)
    assert np.isfinite(past_the_end[:N]).all() and np.isnan(past_the_end[N:]).all()


def test_errors_are_those_of_the_dense_matrix():
    C = strategy(3)
    expected = dense.per_query_error(strategy_matrix=C.materialize())
    np.testing.assert_allclose(banded.per_query_error(C), expected, rtol=1e-12)
    A = streaming_matrix.momentum_sgd_matrix(0.5)
    with jax.enable_x64(True):
        workload = np.asarray(A.materialize(N))
    expected = dense.per_query_error(strategy_matrix=C.materialize(), workload_matrix=workload)
    np.testing.assert_allclose(banded.per_query_error(C, A), expected, rtol=1e-12)


def test_starting_from_a_toeplitz_matrix():
    coefs = np.array([1.0, 0.5, 0.25])
    matrix = ColumnNormalizedBanded.from_banded_toeplitz(N, coefs).materialize()
    C = toeplitz.materialize_lower_triangular(coefs, N)
    np.testing.assert_allclose(matrix, C / np.linalg.norm(C, axis=0), rtol=1e-14)
    root = toeplitz.optimal_max_error_strategy_coefs(3)
    np.testing.assert_array_equal(ColumnNormalizedBanded.default(N, 3).params, [root] * N)


@pytest.mark.parametrize("min_sep, most", [(3, None), (3, 2), (5, None), (9, 4)])
def test_sensitivity_counts_participations(min_sep, most):
    C = strategy(3)
    patterns = list(participations.separated(N, min_sep, most))
    got = banded.minsep_sensitivity_squared(C, min_sep, most)
    truth = participations.worst_move_squared(C.materialize(), patterns)
    assert got == pytest.approx(truth, rel=1e-12)


def test_overlapping_columns_are_rejected():
    with pytest.raises(FixArgumentsError, match=r"min_sep=2 is smaller than bands=3"):
        banded.minsep_sensitivity_squared(strategy(3), 2)
    assert banded.minsep_sensitivity_squared(strategy(3), 2, skip_checks=True) == 4
    assert banded.minsep_sensitivity_squared(strategy(3), 4, n=20) == 5


def test_the_optimum():
    start = ColumnNormalizedBanded.default(N, 3)
    C = optimum(N, bands=3)
    error = banded.per_query_error(C).mean()
    assert type(C.params) is np.ndarray and C.params.dtype == np.float64
    assert error < 0.99 * banded.per_query_error(start).mean()
    # Banded X with ones on the diagonal correspond to banded C with columns of norm 1.
    best = dense.per_query_error(strategy_matrix=dense.optimize(N, bands=3)).mean()
    assert error == pytest.approx(best, rel=1e-5)


def test_a_custom_scan_and_the_largest_error():
    def scan(step, state, xs):
        return jax.lax.scan(jax.checkpoint(step), state, xs)

    losses = []
    best = banded.optimize(
        N,
        bands=3,
        reduction_fn=jnp.max,
        scan_fn=scan,
        callback=lambda info: losses.append(info.loss),
    )
    largest = banded.per_query_error(best).max()
    assert largest < banded.per_query_error(optimum(N, bands=3)).max()
    assert largest == pytest.approx(losses[-1], rel=1e-9)


@pytest.mark.parametrize(
    "params, message",
    [
        (np.ones(3), "one row per step"),
        (np.ones((2, 3)), "at most as many bands"),
        (np.array([[1.0], [np.nan]]), "nan"),
        (np.array([[1.0], [0.0]]), "no inverse"),
    ],
)
def test_bad_params(params, message):
    for use in (ColumnNormalizedBanded.materialize, ColumnNormalizedBanded.columns):
        with pytest.raises(FixArgumentsError, match=message):
            use(ColumnNormalizedBanded(params))


def test_bad_input():
    for call, message in [
        (lambda: ColumnNormalizedBanded.default(4, 5), "bands=5 for n=4"),
        (lambda: ColumnNormalizedBanded.default(0, 1), "n=0"),
        (lambda: ColumnNormalizedBanded.from_banded_toeplitz(2, np.ones(3)), "bands=3 for n=2"),
        (lambda: ColumnNormalizedBanded.from_banded_toeplitz(2, [0.0, 1.0]), "no inverse"),
        (lambda: banded.optimize(4, bands=5), "bands=5 for n=4"),
        (lambda: banded.optimize(4, bands=2, C=strategy(2)), "start from one with n=4"),
        (lambda: banded.minsep_sensitivity_squared(strategy(1), 0), "min_sep"),
    ]:
        with pytest.raises(FixArgumentsError, match=message):
            call()
