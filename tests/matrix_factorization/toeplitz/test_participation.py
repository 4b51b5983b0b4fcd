"""Sensitivities of Toeplitz matrices, compared with an exhaustive search over steps."""

import jax
import numpy as np
import participations
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import sensitivity, toeplitz
from bevel.matrix_factorization.toeplitz.participation import column_norms

N = 7
NAMES = ("min_sep", "n", "max_participations")
PATTERNS = [(1, None), (1, 3), (2, None), (2, 2), (3, None), (4, 1), (7, None), (9, 2)]


def squared(coef, patterns, worst=participations.worst_move_squared):
    return worst(toeplitz.materialize_lower_triangular(coef, N), patterns)


@pytest.mark.parametrize("min_sep, most", PATTERNS)
@pytest.mark.parametrize("kind", ["root", "flat", "steep", "short"])
def test_coefficients_that_do_not_grow_are_exact(kind, min_sep, most):
    coef = {
        "root": toeplitz.optimal_max_error_strategy_coefs(N),
        "flat": np.ones(N),
        "steep": 0.1 ** np.arange(N),
        "short": np.array([1.0, 0.5]),
    }[kind]
    patterns = list(participations.separated(N, min_sep, most))
    got = toeplitz.minsep_sensitivity_squared(coef, min_sep, n=N, max_participations=most)
    assert got == pytest.approx(squared(coef, patterns), rel=1e-12)


@pytest.mark.parametrize("min_sep, most", PATTERNS)
def test_other_coefficients_have_an_upper_bound(min_sep, most):
    rng = np.random.default_rng(0)
    for _ in range(5):
        coef = rng.normal(size=5)
        patterns = list(participations.separated(N, min_sep, most))
        got = toeplitz.minsep_sensitivity_squared(coef, min_sep, n=N, max_participations=most)
        truth = squared(coef, patterns, participations.bound_squared)
        assert got >= truth * (1 - 1e-12)
        with jax.enable_x64(True):
            traced = jax.jit(toeplitz.minsep_sensitivity_squared, static_argnames=NAMES)(
                coef, min_sep=min_sep, n=N, max_participations=most
            )
            np.testing.assert_allclose(traced, got, rtol=1e-13)
        if min_sep >= 5:  # columns do not overlap
            assert got == pytest.approx(truth, rel=1e-12)


def test_one_participation_is_the_first_column():
    coef = np.array([0.5, -2.0, 1.0])
    assert toeplitz.sensitivity_squared(coef) == 5.25
    assert toeplitz.sensitivity_squared(coef, 2) == 4.25
    assert toeplitz.sensitivity_squared(coef, 9) == 5.25
    C = toeplitz.materialize_lower_triangular(coef, N)
    assert sensitivity.single_participation_sensitivity(C) ** 2 == pytest.approx(5.25)
    np.testing.assert_allclose(column_norms(coef, N), np.linalg.norm(C, axis=0), rtol=1e-15)


@pytest.mark.parametrize("min_sep, most", [(1, None), (2, 2), (3, None), (7, None)])
@pytest.mark.parametrize("tight", [False, True])
def test_banded_inverses(min_sep, most, tight):
    patterns = list(participations.separated(N, min_sep, most))
    for noising, exact in [
        (toeplitz.banded_inverse_square_root_noising_coefs(3), True),
        (np.array([1.0, 0.8]), False),  # the coefficients of C alternate
        (np.array([1.0, -0.5, 0.4]), False),
    ]:
        C = np.linalg.inv(toeplitz.materialize_lower_triangular(noising, N))
        got = toeplitz.compute_banded_inverse_sensitivity_squared(
            N, noising, min_sep, most, use_matrix_upper_bound=tight
        )
        truth = participations.bound_squared(C, patterns)
        assert got >= truth * (1 - 1e-12)
        if exact:
            assert got == pytest.approx(truth, rel=1e-12)


def test_the_matrix_bound_is_tighter_for_coefficients_that_grow():
    noising = np.array([1.0, -0.5, 0.4])
    arguments = (N, noising, 3, None)
    wide = toeplitz.compute_banded_inverse_sensitivity_squared(*arguments)
    tight = toeplitz.compute_banded_inverse_sensitivity_squared(*arguments, True)
    assert tight < wide


def test_bisr_has_coefficients_that_do_not_grow():
    for bands in (2, 3, 8, 50):
        noising = toeplitz.banded_inverse_square_root_noising_coefs(bands)
        coef = toeplitz.inverse_coef(noising, 120)
        assert np.all(coef > 0) and np.all(np.diff(coef) < 1e-15)


def test_the_sensitivity_can_be_differentiated():
    with jax.enable_x64(True):
        coef = np.array([1.0, 0.6, 0.3])

        def f(c):
            return toeplitz.minsep_sensitivity_squared(c, 2, n=N)

        gradient = np.asarray(jax.jit(jax.grad(f))(coef))
        for i in range(3):
            step = 1e-6 * np.eye(3)[i]
            numerical = (f(coef + step) - f(coef - step)) / 2e-6
            assert gradient[i] == pytest.approx(numerical, rel=1e-7)


def test_bad_participations():
    for kwargs, message in [
        ({"min_sep": 0, "n": 3}, "min_sep"),
        ({"min_sep": 1.5, "n": 3}, "min_sep"),
        ({"min_sep": 1, "n": 0}, "n="),
        ({"min_sep": 1, "n": 3, "max_participations": -1}, "max_participations"),
    ]:
        with pytest.raises(FixArgumentsError, match=message):
            toeplitz.minsep_sensitivity_squared([1.0], **kwargs)
        n = kwargs.pop("n")
        with pytest.raises(FixArgumentsError, match=message):
            toeplitz.compute_banded_inverse_sensitivity_squared(n, [1.0], **kwargs)
    with pytest.raises(FixArgumentsError, match="nan"):
        toeplitz.minsep_sensitivity_squared([1.0, np.nan], 1, n=3)


def test_what_never_takes_part_has_no_sensitivity():
    options = {"min_sep": 1, "max_participations": 0}
    assert toeplitz.minsep_sensitivity_squared([1.0, 0.5], n=3, **options) == 0
    assert toeplitz.compute_banded_inverse_sensitivity_squared(3, [1.0], **options) == 0
