"""Gaussian DP: delta by integration, epsilon by its inverse, and mu from rates."""

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from bevel.auditing import CanaryScoreAuditor
from bevel.auditing.clopper_pearson import uniform_rate_bounds
from bevel.auditing.gaussian_tradeoff import gaussian_delta, gaussian_epsilon, mu_lower_bound
from bevel.auditing.score_cuts import ScoreCuts


@pytest.mark.parametrize("mu", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 4.0])
def test_delta_is_the_hockey_stick_divergence(mu, epsilon):
    # The integrand is positive from here on.
    start = epsilon / mu + mu / 2
    wanted, _ = integrate.quad(
        lambda x: stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x), start, start + 15
    )
    assert gaussian_delta(mu, epsilon) == pytest.approx(wanted, rel=1e-6, abs=1e-14)


@pytest.mark.parametrize("mu", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01])
def test_epsilon_is_within_the_tolerance_and_never_too_high(mu, delta):
    for tolerance in (1e-3, 1e-8):
        found = gaussian_epsilon(mu, delta, tolerance)
        assert gaussian_delta(mu, found) >= delta > gaussian_delta(mu, found + 2 * tolerance)


def test_edge_cases_of_epsilon():
    assert gaussian_epsilon(0.0, 0.0, 1e-6) == 0
    assert gaussian_epsilon(1.0, 0.0, 1e-6) == math.inf
    assert gaussian_epsilon(1.0, 1.0, 1e-6) == 0
    assert gaussian_epsilon(0.1, 0.5, 1e-6) == 0


def test_mu_is_that_of_the_best_threshold():
    rng = np.random.default_rng(0)
    cuts = ScoreCuts(rng.normal(1, 1, 500), rng.normal(size=400))
    tpr, fpr = uniform_rate_bounds(cuts, 0.05)
    wanted = max(
        stats.norm.isf(high) + stats.norm.ppf(low)
        for low, high in zip(tpr, fpr, strict=True)
        if low > 0 and high < 1
    )
    assert mu_lower_bound(cuts, 0.05) == pytest.approx(wanted)


def test_mu_is_close_for_many_canaries():
    scores = special.ndtri((np.arange(100_000) + 0.5) / 100_000)
    mu = mu_lower_bound(ScoreCuts(scores + 1.0, scores), 0.05)
    assert 0.95 < mu < 1


def test_equal_or_reversed_scores_show_nothing():
    assert CanaryScoreAuditor(np.zeros(99), np.zeros(99)).epsilon_from_gdp(0.05, 1e-5) == 0
    assert CanaryScoreAuditor(np.zeros(99), np.ones(99)).epsilon_from_gdp(0.05, 1e-5) == 0
