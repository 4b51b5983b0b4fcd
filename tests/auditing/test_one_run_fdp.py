"""One-run bounds on mu, against a linear program over all distributions of correct guesses."""

import numpy as np
import pytest
from scipy import optimize, special, stats

from bevel.auditing import Bonferroni, CanaryScoreAuditor, Explicit, MultiSplit, Split
from bevel.auditing.gaussian_tradeoff import gaussian_epsilon
from bevel.auditing.guesses import Guesses
from bevel.auditing.one_run_fdp import mu_lower_bounds, tail_is_impossible

STRATEGIES = [Bonferroni(), Explicit(2.0), Split(seed=0), MultiSplit(9, seed=0)]


def largest_tail(correct, made, canaries, mu, one_sided):
    """The largest probability of so many correct guesses that the inequalities allow.

    G is the minimum of its tangents, so each inequality is many linear ones.
    """
    factor = 2 if one_sided else 1
    x = np.concatenate([np.geomspace(1e-9, 0.5, 400), 1 - np.geomspace(1e-6, 0.5, 100)])
    z = special.ndtri(x)
    slope = np.exp(-mu * z - mu**2 / 2)
    offset = special.ndtr(z + mu) - slope * x
    counts = np.arange(made + 1)
    rows, limits = [np.ones(made + 1)], [1.0]
    for c in range(1, made + 1):
        right = np.where(counts >= c, counts, 0) / canaries
        wrong = np.where(counts >= c - 1, made - counts, 0) / canaries
        rows += list(right - slope[:, None] * wrong)
        limits += list(offset / factor)
    solved = optimize.linprog(
        -(counts >= correct).astype(float), np.array(rows), np.array(limits), bounds=(0, 1)
    )
    assert solved.status == 0
    return -solved.fun


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
@pytest.mark.parametrize(("correct", "made", "canaries"), [(6, 6, 12), (9, 10, 30), (14, 20, 20)])
def test_the_recursion_finds_the_largest_tail(correct, made, canaries, mu, one_sided):
    wanted = largest_tail(correct, made, canaries, mu, one_sided)
    guesses = Guesses(np.array([made]), np.array([correct]))

    def impossible(probability):
        return tail_is_impossible(guesses, canaries, probability, np.array([mu]), one_sided)[0]

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if impossible(middle) else (middle, high)
    # The tangents leave a little more room than G itself.
    assert low <= wanted + 1e-7
    assert low == pytest.approx(wanted, rel=5e-3)


def test_bounds_are_where_the_tail_becomes_possible():
    guesses = Guesses(np.array([20, 50, 50, 10]), np.array([20, 48, 20, 0]))
    found = mu_lower_bounds(guesses, 100, 0.05, True)
    assert (found[:2] > 0.2).all() and (found[2:] == 0).all()
    assert tail_is_impossible(guesses, 100, 0.05, found, True)[:2].all()
    assert not tail_is_impossible(guesses, 100, 0.05, found + 1e-3, True)[:2].any()


def test_more_correct_guesses_show_more():
    correct = np.arange(20, 41)
    for one_sided in (True, False):
        found = mu_lower_bounds(Guesses(np.full(21, 40), correct), 200, 0.05, one_sided)
        assert (np.diff(found) >= 0).all() and found[-1] > 0.5


def test_one_sided_guesses_show_more_than_the_same_numbers_two_sided():
    guesses = Guesses(np.array([30, 100]), np.array([29, 80]))
    one, two = (mu_lower_bounds(guesses, 400, 0.05, one_sided) for one_sided in (True, False))
    assert (one > two).all()


def test_no_guesses_exceed_what_independent_gaussians_do():
    """The tail of independent canaries is allowed at their own mu."""
    mu, canaries = 1.0, 100
    # Two-sided guesses of all canaries at mu / 2: each is correct with probability Phi(mu / 2).
    correct = stats.binom.isf(0.05, canaries, stats.norm.cdf(mu / 2))
    guesses = Guesses(np.array([canaries]), np.array([int(correct)]))
    tail = stats.binom.sf(int(correct) - 1, canaries, stats.norm.cdf(mu / 2))
    assert not tail_is_impossible(guesses, canaries, tail, np.array([mu]), False)[0]


def test_a_random_number_of_guesses_is_corrected_for():
    """Explicit thresholds and splits divide the significance by the number of canaries."""
    auditor = CanaryScoreAuditor([1.0] * 60 + [0.0] * 40, [1.0] * 2 + [0.0] * 98)
    found = auditor.epsilon_one_run_fdp(0.05, 1e-5, threshold_strategy=Explicit(0.5))
    guesses = Guesses(np.array([62]), np.array([60]))
    mu = mu_lower_bounds(guesses, 200, 0.05 / 200, True)[0]
    assert found == pytest.approx(gaussian_epsilon(mu, 1e-5, 1e-6)) and found > 0.5
    two_sided = auditor.epsilon_one_run_fdp(0.05, 1e-5, False, threshold_strategy=Explicit(0.5))
    mu = mu_lower_bounds(Guesses(np.array([200]), np.array([158])), 200, 0.05, False)[0]
    assert two_sided == pytest.approx(gaussian_epsilon(mu, 1e-5, 1e-6))


def test_all_numbers_of_guesses_are_corrected_for():
    auditor = CanaryScoreAuditor(np.arange(1, 241.0), -np.arange(240.0))
    # 10, 40 or 160 guesses.
    mu = mu_lower_bounds(Guesses(np.array([160]), np.array([160])), 480, 0.05 / 3, True)[0]
    found = auditor.epsilon_one_run_fdp(0.05, 1e-5, threshold_strategy=Bonferroni())
    assert found == pytest.approx(gaussian_epsilon(mu, 1e-5, 1e-6))


def test_results_that_no_mu_allows_have_a_finite_bound():
    """A canary is held in with probability 1 / 2, so no guess is correct almost always."""
    guesses = Guesses(np.array([1]), np.array([1]))
    assert 1000 < mu_lower_bounds(guesses, 1, 0.999, True)[0] < 3000


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_shown_from_equal_scores_or_with_delta_1(strategy, one_sided):
    equal = CanaryScoreAuditor(np.ones(200), np.ones(200))
    assert equal.epsilon_one_run_fdp(0.05, 1e-5, one_sided, threshold_strategy=strategy) == 0
    separated = CanaryScoreAuditor(np.ones(200) * 3, np.ones(200))
    assert separated.epsilon_one_run_fdp(0.05, 1.0, one_sided, threshold_strategy=strategy) == 0
    assert separated.epsilon_one_run_fdp(0.05, 1e-5, one_sided, threshold_strategy=strategy) > 1
