"""Lower bounds exceed the true epsilon with at most their significance, and are not far below."""

import auditing_mechanisms as mechanisms
import numpy as np
import pytest
from scipy import stats

from bevel.auditing import Bonferroni, CanaryScoreAuditor, Explicit, MultiSplit, Split
from bevel.auditing.gaussian_tradeoff import gaussian_epsilon

SIGNIFICANCE = 0.3  # large, so that a bound that is not corrected is noticed
TRIALS = 150
MOST = stats.binom.ppf(0.9999, TRIALS, SIGNIFICANCE)
DELTA = 1e-3
MU = 1.5
# The mechanism, its parameter, delta, the true epsilon, and a threshold that shows it.
CASES = {
    "randomised response": (mechanisms.randomised_response, 1.0, 0.0, 1.0, 0.5),
    "laplace": (mechanisms.laplace, 1.0, 0.0, 1.0, 1.0),
    "gaussian": (mechanisms.gaussian, MU, DELTA, gaussian_epsilon(MU, DELTA, 1e-9), 1.5),
}


def strategies(threshold, trial):
    return [
        Bonferroni(),
        Explicit(threshold),
        Split(seed=trial),
        MultiSplit(5, seed=trial),
    ]


def excesses(bound, game, case, canaries, trials=TRIALS):
    """How often each strategy's bound exceeds the truth, and the mean bounds."""
    mechanism, parameter, delta, truth, threshold = CASES[case]
    found = []
    for trial in range(trials):
        rng = np.random.default_rng([trial, canaries])
        auditor = CanaryScoreAuditor(*game(mechanism, rng, parameter, canaries))
        found.append(
            [
                bound(auditor, SIGNIFICANCE, delta, side, threshold_strategy=strategy)
                for strategy in strategies(threshold, trial)
                for side in (True, False)
            ]
        )
    return (np.array(found) > truth).sum(0), np.mean(found, axis=0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("canaries", [25, 300])
def test_clopper_pearson(case, canaries):
    failures, means = excesses(
        CanaryScoreAuditor.epsilon_clopper_pearson, mechanisms.two_groups, case, canaries
    )
    assert (failures <= MOST).all(), failures
    if canaries == 300:
        assert (means > 0.3).all(), means


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("canaries", [40, 600])
def test_one_run(case, canaries):
    failures, means = excesses(
        CanaryScoreAuditor.epsilon_one_run, mechanisms.one_run, case, canaries
    )
    assert (failures <= MOST).all(), failures
    if canaries == 600:
        assert (means > 0.1).all(), means


@pytest.mark.parametrize("canaries", [40, 200])
def test_one_run_fdp(canaries):
    bound = CanaryScoreAuditor.epsilon_one_run_fdp
    failures, means = excesses(bound, mechanisms.one_run, "gaussian", canaries, trials=40)
    assert (failures <= stats.binom.ppf(0.9999, 40, SIGNIFICANCE)).all(), failures
    if canaries == 200:
        assert means.max() > 0.5


@pytest.mark.parametrize("canaries", [25, 300])
def test_gaussian_dp(canaries):
    truth = gaussian_epsilon(MU, DELTA, 1e-9)
    found = [
        CanaryScoreAuditor(
            *mechanisms.two_groups(
                mechanisms.gaussian, np.random.default_rng([trial, canaries]), MU, canaries
            )
        ).epsilon_from_gdp(SIGNIFICANCE, DELTA)
        for trial in range(TRIALS)
    ]
    assert sum(bound > truth for bound in found) <= MOST
    if canaries == 300:
        assert np.mean(found) > truth / 2


def test_accuracy():
    """The lower bound on the best accuracy, which is Phi(mu / 2) for a Gaussian mechanism."""
    truth = stats.norm.cdf(MU / 2)
    found = [
        CanaryScoreAuditor(
            *mechanisms.two_groups(mechanisms.gaussian, np.random.default_rng(trial), MU, 60)
        ).max_accuracy(significance=SIGNIFICANCE)
        for trial in range(TRIALS)
    ]
    assert sum(bound > truth for bound in found) <= MOST


@pytest.mark.parametrize(("delta", "epsilon"), [(0.004, 0.0), (0.03, 0.0), (0.03, 1.0)])
def test_one_run_with_canaries_that_are_revealed_all_at_once(delta, epsilon):
    """Scores depend on each other: with probability delta, all of them are the coins.

    Otherwise they are randomised response. With the larger delta, leaks are expected.
    """
    canaries, trials, failures = 60, 400, np.zeros(8)
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        held_in = np.append(rng.random(canaries - 2) < 0.5, [True, False])
        revealed = rng.random() < delta
        noisy = mechanisms.randomised_response(rng, held_in, epsilon) + rng.random(canaries)
        values = np.where(revealed, 2.0 * held_in, noisy)
        auditor = CanaryScoreAuditor(values[held_in], values[~held_in])
        failures += [
            auditor.epsilon_one_run(0.2, delta, one_sided, threshold_strategy=strategy) > epsilon
            for strategy in strategies(1.0, trial)
            for one_sided in (True, False)
        ]
    assert (failures <= stats.binom.ppf(0.9999, trials, 0.2)).all(), failures


def test_bounds_are_close_for_many_canaries():
    """Exact quantiles as scores: the bounds are then near what the method can show at all."""
    canaries = 50_000
    position = (np.arange(canaries) + 0.5) / canaries
    auditor = CanaryScoreAuditor(stats.norm.ppf(position) + 1, stats.norm.ppf(position))
    truth = gaussian_epsilon(1.0, 1e-3, 1e-9)
    assert 0.9 * truth < auditor.epsilon_from_gdp(0.05, 1e-3) < truth
    noise = stats.laplace.ppf(position)
    auditor = CanaryScoreAuditor(noise + 1, noise)
    for strategy in (Bonferroni(), Explicit(1.0), Split(seed=0), MultiSplit(5, seed=0)):
        for side in (True, False):
            cp = auditor.epsilon_clopper_pearson(0.05, 0, side, threshold_strategy=strategy)
            assert 0.9 < cp < 1, strategy
        run = auditor.epsilon_one_run(0.05, 0, True, threshold_strategy=strategy)
        assert 0.9 < run < 1, strategy
