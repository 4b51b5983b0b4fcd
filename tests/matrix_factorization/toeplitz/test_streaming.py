"""Streaming Toeplitz matrices, compared with dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import sensitivity, toeplitz

N = 9
COEFS = {1: [2.0], 4: [1.0, 0.5, -0.25, 0.125], 9: 0.8 ** np.arange(9)}


@pytest.mark.parametrize("bands", COEFS)
def test_the_inverse_undoes_the_matrix(bands):
    C = toeplitz.materialize_lower_triangular(COEFS[bands], N)
    with jax.enable_x64(True):
        inverse = np.asarray(toeplitz.inverse_as_streaming_matrix(COEFS[bands]).materialize(N))
    np.testing.assert_allclose(inverse @ C, np.eye(N), atol=1e-14)


@pytest.mark.parametrize("bands", COEFS)
def test_the_matrix_itself(bands):
    with jax.enable_x64(True):
        got = toeplitz.as_streaming_matrix(COEFS[bands]).materialize(N)
    np.testing.assert_array_equal(got, toeplitz.materialize_lower_triangular(COEFS[bands], N))


@pytest.mark.parametrize("bands", COEFS)
def test_columns_scaled_to_norm_one(bands):
    C = toeplitz.materialize_lower_triangular(COEFS[bands], N)
    C = C / np.linalg.norm(C, axis=0)
    stream = toeplitz.inverse_as_streaming_matrix(COEFS[bands], column_normalize_for_n=N)
    with jax.enable_x64(True):
        np.testing.assert_allclose(np.asarray(stream.materialize(N)) @ C, np.eye(N), atol=1e-14)
    assert sensitivity.single_participation_sensitivity(C) == pytest.approx(1)
    past_the_end = stream @ np.ones(N + 1, np.float32)
    assert np.isfinite(past_the_end[:N]).all() and np.isnan(past_the_end[N])


def test_the_state_has_one_buffer_fewer_than_bands():
    for make in (toeplitz.inverse_as_streaming_matrix, toeplitz.as_streaming_matrix):
        for bands, coef in COEFS.items():
            state = make(coef).init_multiply(jnp.ones((3, 2), jnp.bfloat16))
            assert state["ring"].shape == (bands - 1, 3, 2)
            assert state["ring"].dtype == jnp.float32


def test_long_streams_stay_near_the_exact_ones():
    coef = toeplitz.optimal_max_error_strategy_coefs(16)
    z = np.random.default_rng(0).normal(size=2000)
    got = toeplitz.inverse_as_streaming_matrix(coef) @ z.astype(np.float32)
    np.testing.assert_allclose(got, toeplitz.solve_banded(coef, z), atol=1e-5)


def test_coefficients_may_be_traced():
    @jax.jit
    def error(coef):
        return toeplitz.inverse_as_streaming_matrix(coef, column_normalize_for_n=4).materialize(4)

    coef = np.array([1.0, 0.5], np.float32)
    expected = toeplitz.inverse_as_streaming_matrix(coef, column_normalize_for_n=4).materialize(4)
    np.testing.assert_allclose(error(coef), expected, atol=1e-6)


def test_bad_input():
    for make in (toeplitz.inverse_as_streaming_matrix, toeplitz.as_streaming_matrix):
        for coef in ([], [[1.0]], [1.0, np.nan]):
            with pytest.raises(FixArgumentsError, match="coef"):
                make(coef)
    with pytest.raises(FixArgumentsError, match="n="):
        toeplitz.inverse_as_streaming_matrix([1.0], column_normalize_for_n=0)
