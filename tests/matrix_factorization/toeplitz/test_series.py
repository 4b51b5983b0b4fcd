"""Algebra of Toeplitz coefficients, compared with dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import toeplitz
from bevel.matrix_factorization.toeplitz import series

RNG = np.random.default_rng(0)
COEF = np.array([2.0, -0.5, 0.25, 0.125])


def dense(coef, n):
    matrix = np.zeros((n, n))
    for k, c in enumerate(coef[:n]):
        matrix += c * np.eye(n, k=-k)
    return matrix


def test_padding():
    np.testing.assert_array_equal(toeplitz.pad_coefs_to_n([1.0, 2.0], 4), [1, 2, 0, 0])
    np.testing.assert_array_equal(toeplitz.pad_coefs_to_n([1.0, 2.0], 1), [1])
    np.testing.assert_array_equal(toeplitz.pad_coefs_to_n([1.0, 2.0]), [1, 2])


@pytest.mark.parametrize("n", [None, 1, 3, 4, 6])
def test_the_dense_matrix(n):
    got = toeplitz.materialize_lower_triangular(COEF, n)
    np.testing.assert_array_equal(got, dense(COEF, n or 4))
    assert type(got) is np.ndarray and got.dtype == np.float64


@pytest.mark.parametrize("n", [2, 6, 300])
def test_products(n):
    other = RNG.normal(size=5)
    expected = (dense(COEF, n) @ dense(other, n))[:, 0]
    np.testing.assert_allclose(toeplitz.multiply(COEF, other, n), expected, atol=1e-14)
    with jax.enable_x64(True):
        traced = jax.jit(toeplitz.multiply, static_argnums=2)(COEF, other, n)
        np.testing.assert_allclose(traced, expected, atol=1e-14)


def test_a_product_has_the_size_of_the_longer_factor():
    assert toeplitz.multiply([1.0], COEF).shape == toeplitz.multiply(COEF, [1.0]).shape == (4,)


# Around the block size, and with bands that span several blocks.
@pytest.mark.parametrize("n, bands", [(1, 1), (5, 4), (129, 1), (300, 7), (300, 200), (260, 260)])
def test_solutions(n, bands):
    coef = np.concatenate([[1.5], 0.5 * RNG.normal(size=bands - 1) / bands])
    rhs = RNG.normal(size=(n, 2))
    got = toeplitz.solve_banded(coef, rhs)
    assert type(got) is np.ndarray and got.dtype == np.float64
    np.testing.assert_allclose(dense(coef, n) @ got, rhs, atol=1e-12)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(toeplitz.solve_banded)(coef, rhs), got, atol=1e-12)


def test_shapes_of_right_hand_sides():
    rhs = RNG.normal(size=(6, 2, 3))
    got = toeplitz.solve_banded(COEF, rhs)
    assert got.shape == rhs.shape
    np.testing.assert_allclose(got[:, 1, 2], toeplitz.solve_banded(COEF, rhs[:, 1, 2]), rtol=1e-13)


def test_inverse():
    got = toeplitz.inverse_coef(COEF, 6)
    np.testing.assert_allclose(dense(got, 6) @ dense(COEF, 6), np.eye(6), atol=1e-14)
    np.testing.assert_allclose(toeplitz.inverse_coef(COEF), got[:4], atol=1e-15)


@pytest.mark.parametrize("n", [6, 300])
def test_derivatives_are_those_of_the_dense_solution(n):
    with jax.enable_x64(True):
        rhs, weights = jnp.asarray(RNG.normal(size=n)), jnp.asarray(RNG.normal(size=n))

        def banded(coef, rhs):
            return jnp.sum(weights * series.solve_banded(coef, rhs))

        def by_matrix(coef, rhs):
            return jnp.sum(
                weights * jnp.linalg.solve(series.materialize_lower_triangular(coef, n), rhs)
            )

        coef = jnp.asarray(COEF)
        got, expected = (
            jax.jit(jax.grad(f, argnums=(0, 1)))(coef, rhs) for f in (banded, by_matrix)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), got, expected)
        along = jax.jit(lambda c: jax.jvp(lambda c: banded(c, rhs), (c,), (jnp.ones(4),))[1])
        tangent = along(coef)
        np.testing.assert_allclose(tangent, jnp.sum(got[0]), rtol=1e-9)


def test_traced_numbers_keep_the_callers_precision():
    got = jax.jit(lambda c: toeplitz.inverse_coef(c, 5))(COEF.astype(np.float32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, toeplitz.inverse_coef(COEF, 5), atol=1e-6)


def test_results_do_not_depend_on_the_callers_precision_or_mesh():
    expected = toeplitz.inverse_coef(COEF, 5)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(toeplitz.inverse_coef(COEF, 5), expected)
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        np.testing.assert_array_equal(toeplitz.inverse_coef(COEF, 5), expected)


@pytest.mark.parametrize("coef", [[], [[1.0]], [1.0, np.nan], [np.inf], 3.0])
def test_bad_coefficients(coef):
    for function in (
        toeplitz.pad_coefs_to_n,
        toeplitz.materialize_lower_triangular,
        toeplitz.inverse_coef,
        lambda c: toeplitz.multiply(c, COEF),
        lambda c: toeplitz.multiply(COEF, c),
        lambda c: toeplitz.solve_banded(c, np.ones(3)),
    ):
        with pytest.raises(FixArgumentsError, match="coef"):
            function(coef)


def test_singular_matrices_are_rejected():
    for call in (
        lambda: toeplitz.inverse_coef([0.0, 1.0]),
        lambda: toeplitz.solve_banded([0.0, 1.0], np.ones(2)),
        lambda: toeplitz.inverse_as_streaming_matrix([0.0, 1.0]),
    ):
        with pytest.raises(FixArgumentsError, match="no inverse"):
            call()
    with pytest.raises(FixArgumentsError, match="rhs is a scalar"):
        toeplitz.solve_banded(COEF, 1.0)


@pytest.mark.parametrize("n", [0, -2, 1.5])
def test_bad_sizes(n):
    for function in (
        toeplitz.pad_coefs_to_n,
        toeplitz.materialize_lower_triangular,
        toeplitz.inverse_coef,
        lambda c, n: toeplitz.multiply(c, c, n),
    ):
        with pytest.raises(FixArgumentsError, match="n="):
            function(COEF, n)
