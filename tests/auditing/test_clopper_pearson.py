"""Bounds by exact binomial intervals, against loops over scipy.stats and closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from bevel.auditing import (
    Bonferroni,
    CanaryScoreAuditor,
    Explicit,
    MultiSplit,
    Split,
    fewest_canaries,
)
from bevel.auditing.clopper_pearson import (
    clopper_pearson_epsilon,
    epsilon_of_rates,
    fixed_counts,
    lower_bound,
    num_tests,
    uniform_rate_bounds,
    upper_bound,
    wilson_bound,
)
from bevel.auditing.score_cuts import ScoreCuts
from bevel.errors import FixArgumentsError


def slow_bounds(successes, trials, significance):
    interval = [
        stats.binomtest(int(successes), int(trials), alternative=side).proportion_ci(
            1 - significance, "exact"
        )
        for side in ("greater", "less")
    ]
    return interval[0].low, interval[1].high


@pytest.mark.parametrize("trials", [1, 7, 50])
@pytest.mark.parametrize("significance", [0.05, 1e-6])
def test_bounds_are_those_of_scipy(trials, significance):
    counts = np.arange(trials + 1)
    slow = np.array([slow_bounds(k, trials, significance) for k in counts])
    np.testing.assert_allclose(lower_bound(counts, trials, significance), slow[:, 0], rtol=1e-6)
    np.testing.assert_allclose(upper_bound(counts, trials, significance), slow[:, 1], rtol=1e-6)


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("delta", [0, 0.01, 0.3])
@pytest.mark.parametrize(("num_in", "num_out"), [(35, 30), (60, 45)])
def test_all_thresholds_are_tried_with_their_correction(one_sided, delta, num_in, num_out):
    rng = np.random.default_rng(1)
    ins, outs = rng.normal(2, 1, num_in), rng.normal(0, 1, num_out)
    wanted = 0.0
    for threshold in np.concatenate([ins, outs]):
        misses = min(k for k in [*fixed_counts(num_in), num_in] if k >= (ins < threshold).sum())
        hits = min(k for k in [*fixed_counts(num_out), num_out] if k >= (outs >= threshold).sum())
        tpr = slow_bounds(num_in - misses, num_in, 0.05 / 2 / num_tests(num_in))[0]
        fpr = slow_bounds(hits, num_out, 0.05 / 2 / num_tests(num_out))[1]
        ratios = [(tpr - delta) / fpr] + ([] if one_sided else [(1 - fpr - delta) / (1 - tpr)])
        wanted = max([wanted, *(math.log(ratio) for ratio in ratios if ratio > 0)])
    found = CanaryScoreAuditor(ins, outs).epsilon_clopper_pearson(0.05, delta, one_sided)
    assert wanted > 0 and found == pytest.approx(wanted, rel=1e-6)


def test_few_counts_are_corrected_for():
    assert fixed_counts(35).tolist() == list(range(35)) and num_tests(35) == 35
    for trials in [*range(1, 600), 999, 1000, 10_001, 123_456, 1_000_000]:
        tested = fixed_counts(trials)
        assert tested[0] == 0 and tested[-1] == trials - 1
        assert tested.size <= num_tests(trials) <= trials
        assert (tested == trials - 1 - tested[::-1]).all()  # the same for misses as for hits
    assert num_tests(1_000_000) < 300
    # Neighbours are next to each other, or not far apart.
    lower = tested[tested < 500_000]
    assert (np.diff(lower) <= np.maximum(lower[:-1] / 6, 1)).all()


def test_an_explicit_threshold_has_no_correction():
    auditor = CanaryScoreAuditor([0, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 1])
    strategy = Explicit(0.5)
    found = auditor.epsilon_clopper_pearson(0.1, threshold_strategy=strategy)
    tpr, fpr = slow_bounds(7, 8, 0.05)[0], slow_bounds(1, 8, 0.05)[1]
    assert found == pytest.approx(math.log(tpr / fpr))
    at_the_scores = CanaryScoreAuditor([1.0] * 50, [0.0] * 50)
    bounds = [
        at_the_scores.epsilon_clopper_pearson(0.1, threshold_strategy=Explicit(t))
        for t in (1.0, 0.0, -1.0)
    ]
    assert bounds[1] > 2 and bounds[0] == bounds[2] == 0


@pytest.mark.parametrize("canaries", [20, 1000])
def test_separated_scores_have_a_closed_form(canaries):
    auditor = CanaryScoreAuditor(np.ones(canaries), np.zeros(canaries))
    rest = canaries // 2

    def closed_form(level, counted):
        rate = (level / 2) ** (1 / counted)
        return math.log(rate / (1 - rate))

    cases = [
        (Bonferroni(), closed_form(0.05 / num_tests(canaries), canaries)),
        (Explicit(0.5), closed_form(0.05, canaries)),
        (Split(seed=0), closed_form(0.05, rest)),
        (MultiSplit(num_samples=7, seed=0), closed_form(0.025, rest)),
    ]
    for strategy, wanted in cases:
        for one_sided in (True, False):
            found = auditor.epsilon_clopper_pearson(
                0.05, one_sided=one_sided, threshold_strategy=strategy
            )
            assert found == pytest.approx(max(wanted, 0), rel=1e-9), strategy


def test_fewest_canaries_are_just_enough():
    for strategy in (Bonferroni(), Explicit(0.5), Split(seed=0), MultiSplit(5, seed=0)):
        enough = fewest_canaries(2.0, 0.05, 1e-5, threshold_strategy=strategy)
        shown = [
            CanaryScoreAuditor(np.ones(n), np.zeros(n)).epsilon_clopper_pearson(
                0.05, 1e-5, threshold_strategy=strategy
            )
            for n in (enough - 1, enough)
        ]
        assert shown[0] < 2.0 <= shown[1], strategy
    with pytest.raises(FixArgumentsError, match="epsilon=0: pass a positive number"):
        fewest_canaries(0, 0.05)
    with pytest.raises(FixArgumentsError, match="delta=1 allows everything"):
        fewest_canaries(1.0, 0.05, 1)
    with pytest.raises(FixArgumentsError, match="threshold_strategy=None"):
        fewest_canaries(1.0, 0.05, threshold_strategy=None)


@pytest.mark.parametrize(("num_in", "num_out", "samples"), [(30, 20, 400), (200, 90, 150)])
def test_bounds_hold_at_all_thresholds_at_once(num_in, num_out, samples):
    """Also at thresholds that are scores themselves, in the share of samples that is promised."""
    rng = np.random.default_rng(0)
    significance, failures = 0.3, 0
    for _ in range(samples):
        ins, outs = rng.random(num_in) ** 0.5, rng.random(num_out)
        corners = ScoreCuts(ins, outs).counts().corners()
        tpr, fpr = uniform_rate_bounds(ScoreCuts(ins, outs), significance)
        low = dict(zip(corners.true_positives, tpr, strict=True))
        high = dict(zip(corners.false_positives, fpr, strict=True))
        # At scores, and just below them. The rates are 1 - t**2 and 1 - t there.
        failures += any(
            1 - t**2 < low.get(count(ins, t), 0) or 1 - t > high.get(count(outs, t), 1)
            for t in np.concatenate([ins, outs])
            for count in (lambda x, t: (x > t).sum(), lambda x, t: (x >= t).sum())
        )
    assert failures <= stats.binom.ppf(0.9999, samples, significance)


def test_rates_and_their_epsilon():
    tpr, fpr = np.array([0.0, 0.5, 1.0, 0.2]), np.array([0.0, 0.1, 0.5, 1.0])
    one = epsilon_of_rates(tpr, fpr, 0.0, True)
    np.testing.assert_allclose(one, [-np.inf, math.log(5), math.log(2), math.log(0.2)])
    two = epsilon_of_rates(tpr, fpr, 0.1, False)
    np.testing.assert_allclose(two, [math.log(0.9), math.log(4), np.inf, math.log(0.1)])


def test_wilson_is_close_to_exact():
    counts = np.arange(0, 2001, 50)
    exact = lower_bound(counts, 2000, 0.01)
    np.testing.assert_allclose(wilson_bound(counts, 2000, 0.01), exact, atol=2e-3)


def test_a_split_needs_two_canaries_of_each_group():
    auditor = CanaryScoreAuditor(np.ones(50), [0.0])
    for strategy in (Split(seed=0), MultiSplit(seed=0)):
        assert auditor.epsilon_clopper_pearson(0.5, threshold_strategy=strategy) == 0


def test_splits_rarely_show_anything_from_scores_without_information():
    """Counting the canaries that chose the threshold would do so in every eighth audit."""
    shown = []
    for trial in range(300):
        rng = np.random.default_rng(trial)
        auditor = CanaryScoreAuditor(rng.random(200), rng.random(200))
        shown.append(auditor.epsilon_clopper_pearson(0.3, threshold_strategy=Split(seed=trial)) > 0)
    assert np.mean(shown) < 0.05


def test_unknown_strategies_are_refused():
    cuts = ScoreCuts(np.ones(2), np.zeros(2))
    with pytest.raises(FixArgumentsError, match=r"threshold_strategy=0\.5: pass Bonferroni"):
        clopper_pearson_epsilon(cuts, 0.05, 0.0, True, 0.5)
