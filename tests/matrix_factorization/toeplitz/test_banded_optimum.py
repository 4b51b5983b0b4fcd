"""Banded optima: no nearby point is better, and known optima are found."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from compare import FULL

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import dense, toeplitz

LOSSES = {"mean": jnp.mean, "max": jnp.max}


@pytest.mark.parametrize("error", LOSSES)
@pytest.mark.parametrize("n, bands", [(12, 12), *([(12, 1)] if FULL else [])])
def test_no_nearby_coefficients_are_better(n, bands, error):
    coef = toeplitz.optimize_banded_toeplitz(n, bands, reduction_fn=LOSSES[error])
    assert coef.shape == (bands,) and coef.dtype == np.float64
    assert np.linalg.norm(coef) == pytest.approx(1)
    best = toeplitz.loss(coef, n, LOSSES[error])
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(5):
            near = coef + size * rng.normal(size=bands)
            assert toeplitz.loss(near, n, LOSSES[error]) >= best * (1 - 1e-9)


def test_two_bands_are_the_best_of_a_line():
    coef = toeplitz.optimize_banded_toeplitz(20, 2)
    ratios = np.linspace(0, 1, 2001)
    losses = [
        toeplitz.per_query_error(strategy_coef=[1.0, r], n=20).mean() * (1 + r * r) for r in ratios
    ]
    assert coef[1] / coef[0] == pytest.approx(ratios[np.argmin(losses)], abs=1e-3)
    assert toeplitz.loss(coef, 20) <= min(losses) * (1 + 1e-12)


def test_the_square_root_is_optimal_for_the_largest_error():
    n = 30
    coef = toeplitz.optimize_banded_toeplitz(n, n, reduction_fn=jnp.max)
    root = toeplitz.optimal_max_error_strategy_coefs(n)
    np.testing.assert_allclose(coef, root / np.linalg.norm(root), atol=1e-6)


def test_more_bands_are_better_and_none_is_better_than_a_dense_matrix():
    n = 12
    losses = [toeplitz.loss(toeplitz.optimize_banded_toeplitz(n, b), n) for b in (1, 3)]
    losses.append(dense.per_query_error(strategy_matrix=dense.optimize(n)).mean())
    assert losses[0] == pytest.approx((n + 1) / 2)
    assert np.all(np.diff(losses) < 0)


@pytest.mark.parametrize("scale", [1e-3, -30.0] if FULL else [-30.0])
def test_the_start_does_not_matter(scale):
    n, bands = 64, 8
    expected = toeplitz.optimize_banded_toeplitz(n, bands)
    start = scale * np.array([1.0, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05])
    got = toeplitz.optimize_banded_toeplitz(n, bands, start)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_long_runs_take_few_evaluations(monkeypatch):
    # Each evaluation costs O(n bands). Count them, because timings are noisy.
    results = []
    minimize = scipy.optimize.minimize
    monkeypatch.setattr(
        scipy.optimize, "minimize", lambda *a, **k: results.append(minimize(*a, **k)) or results[-1]
    )
    coef = toeplitz.optimize_banded_toeplitz(10_000, 16)
    assert results[0].success and results[0].nfev <= 40
    assert toeplitz.loss(coef, 10_000) == pytest.approx(330.46508, rel=1e-6)


def test_no_steps_give_the_start():
    start = np.array([3.0, 4.0])
    got = toeplitz.optimize_banded_toeplitz(5, 2, start, max_optimizer_steps=0)
    np.testing.assert_allclose(got, [0.6, 0.8])


# Banded inverses.


@pytest.mark.parametrize("min_sep, most", [(3, None), *([(10, 1)] if FULL else [])])
def test_no_nearby_banded_inverse_is_better(min_sep, most):
    n, bands = 10, 3

    def loss(coef):
        error = toeplitz.per_query_error(noising_coef=coef, n=n).mean()
        return error * toeplitz.compute_banded_inverse_sensitivity_squared(n, coef, min_sep, most)

    coef = toeplitz.optimize_banded_inverse_toeplitz(n, min_sep, bands, max_participations=most)
    assert coef.shape == (bands,) and coef[0] == 1
    assert loss(coef) < loss(toeplitz.banded_inverse_square_root_noising_coefs(bands))
    rng = np.random.default_rng(0)
    for size in (1e-2, 1e-3):
        for _ in range(10):
            near = coef + size * rng.normal(size=bands) * [0, 1, 1]
            assert loss(near) >= loss(coef) * (1 - 1e-6)


def test_one_band_is_independent_noise():
    np.testing.assert_array_equal(toeplitz.optimize_banded_inverse_toeplitz(5, 1, 1), [1.0])


def test_starts_of_banded_inverses():
    n, bands = 10, 2
    expected = toeplitz.optimize_banded_inverse_toeplitz(n, n, bands)
    by_strategy = toeplitz.optimize_banded_inverse_toeplitz(n, n, bands, strategy_coef=[1.0, 0.3])
    by_noise = toeplitz.optimize_banded_inverse_toeplitz(n, n, bands, noising_coef=[2.0, -0.2])
    np.testing.assert_allclose([by_strategy, by_noise], [expected, expected], atol=1e-5)


def test_another_workload():
    n = 8
    decayed = 0.5 ** np.arange(n)
    coef = toeplitz.optimize_banded_inverse_toeplitz(n, n, 2, workload_coef=decayed)
    error = toeplitz.per_query_error(noising_coef=coef, n=n, workload_coef=decayed).mean()
    plain = toeplitz.optimize_banded_inverse_toeplitz(n, n, 2)
    worse = toeplitz.per_query_error(noising_coef=plain, n=n, workload_coef=decayed).mean()
    sensitivities = [
        toeplitz.compute_banded_inverse_sensitivity_squared(n, c, n) for c in (coef, plain)
    ]
    assert error * sensitivities[0] < worse * sensitivities[1]


# Bad input.


def test_bad_input():
    for call, message in [
        (lambda: toeplitz.optimize_banded_toeplitz(0, 1), "n=0"),
        (lambda: toeplitz.optimize_banded_toeplitz(4, 0), "bands=0"),
        (lambda: toeplitz.optimize_banded_toeplitz(4, 5), "bands=5 for n=4"),
        (lambda: toeplitz.optimize_banded_toeplitz(4, 2, [1.0]), "pass 2"),
        (lambda: toeplitz.optimize_banded_toeplitz(4, 2, [0.0, 1.0]), "not zero"),
        (lambda: toeplitz.optimize_banded_toeplitz(4, 2, [np.nan, 1.0]), "nan"),
        (lambda: toeplitz.optimize_banded_inverse_toeplitz(4, 1, 5), "bands=5 for n=4"),
        (lambda: toeplitz.optimize_banded_inverse_toeplitz(4, 0, 2), "min_sep=0"),
        (lambda: toeplitz.optimize_banded_inverse_toeplitz(4, 1, 2, noising_coef=[1.0]), "pass 2"),
        (
            lambda: toeplitz.optimize_banded_inverse_toeplitz(
                4, 1, 1, noising_coef=[1.0], strategy_coef=[1.0]
            ),
            "not both",
        ),
    ]:
        with pytest.raises(FixArgumentsError, match=message):
            call()
