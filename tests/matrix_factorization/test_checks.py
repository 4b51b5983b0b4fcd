"""Argument checks: valid values pass, and messages name the invalid ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import checks


def test_traced_steps_pass():
    assert checks.checked_steps(3) == 3
    assert jax.jit(lambda n: checks.checked_steps(n) + 1)(0) == 1
    with pytest.raises(FixArgumentsError, match="i=-1"):
        checks.checked_steps(-1, "i", least=0)


def test_bands_fit_the_matrix():
    assert checks.checked_bands(4, 4) == 4
    for bands, message in ((5, "at most 4"), (0, "at least 1"), (2.0, "an integer")):
        with pytest.raises(FixArgumentsError, match=message):
            checks.checked_bands(bands, 4)


@pytest.mark.parametrize("coef", [[], [[1.0]], 1.0, np.ones((2, 2))])
def test_coefficients_are_a_column(coef):
    with pytest.raises(FixArgumentsError, match="coef has shape"):
        checks.checked_coefs(coef, "coef")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_named_with_their_index(bad):
    with pytest.raises(FixArgumentsError, match=r"coef\[1\] is"):
        checks.checked_coefs(np.array([1.0, bad]), "coef")
    matrix = np.eye(3)
    matrix[2, 0] = bad
    with pytest.raises(FixArgumentsError, match=r"C\[2\]\[0\] is"):
        checks.checked_lower_triangular(matrix, "C")


@pytest.mark.parametrize("values", [np.array([1j]), np.array(["a"]), np.array([True])])
def test_coefficients_are_real_numbers(values):
    with pytest.raises(FixArgumentsError, match="dtype"):
        checks.checked_coefs(values, "coef")


@pytest.mark.parametrize("shape", [(2, 3), (4,), (0, 0), (2, 2, 2), ()])
def test_a_matrix_is_square(shape):
    for check in (checks.checked_square, checks.checked_lower_triangular):
        with pytest.raises(FixArgumentsError, match=r"C has shape.*square"):
            check(np.zeros(shape), "C")


def test_an_entry_above_the_diagonal_is_named():
    matrix = np.tril(np.ones((3, 3)))
    assert checks.checked_lower_triangular(matrix, "C") is matrix
    matrix[0, 2] = 1e-30
    assert checks.checked_square(matrix, "C") is matrix
    with pytest.raises(FixArgumentsError, match=r"C\[0, 2\] = 1e-30.*np.tril\(C\)"):
        checks.checked_lower_triangular(matrix, "C")


def test_traced_values_pass_with_their_shapes_checked():
    @jax.jit
    def f(x):
        checks.checked_lower_triangular(x, "C")
        with pytest.raises(FixArgumentsError, match="has shape"):
            checks.checked_coefs(x, "coef")
        return checks.checked_coefs(x[0], "coef")

    np.testing.assert_array_equal(f(jnp.full((2, 2), jnp.nan)), [np.nan, np.nan])
