"""The convex hull of the ROC, against all pairs of points."""

import itertools

import numpy as np
import pytest
from scipy import stats

from bevel.auditing import CanaryScoreAuditor
from bevel.auditing.roc import best_accuracy, hull_area, hull_of, hull_tpr, upper_hull
from bevel.auditing.score_cuts import ScoreCuts


def slow_tpr(counts, fpr):
    """The highest line between two points of the ROC."""
    points = list(zip(counts[1] / counts[1][-1], counts[0] / counts[0][-1], strict=True))
    best = 0.0
    for (x0, y0), (x1, y1) in itertools.combinations_with_replacement(points, 2):
        if x0 <= fpr <= x1:
            best = max(best, y1 if x0 == x1 else y0 + (y1 - y0) * (fpr - x0) / (x1 - x0))
    return best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("decimals", [0, 3])
def test_the_hull_is_the_best_mixture_of_two_thresholds(seed, decimals):
    rng = np.random.default_rng(seed)
    ins, outs = rng.normal(0.7, 1, 40).round(decimals), rng.normal(size=30).round(decimals)
    counts = ScoreCuts(ins, outs).counts()
    rates = np.linspace(0, 1, 23)
    wanted = [slow_tpr(counts, rate) for rate in rates]
    np.testing.assert_allclose(hull_tpr(counts, rates), wanted, rtol=1e-12)
    x, y = hull_of(counts)
    slopes = np.diff(y) / np.diff(x)
    assert (np.diff(slopes) < 0).all() and x[-1] == y[-1] == 1


def test_the_hull_contains_every_point_of_a_long_curve():
    """A curve on which few points are below the line between their neighbours."""
    x = np.concatenate([np.linspace(0, 1, 300), [1.001]])
    y = np.concatenate([np.sqrt(x[:-1]), [40.0]])
    assert [v.tolist() for v in upper_hull(x, y)] == [[0.0, 1.001], [0.0, 40.0]]
    points = upper_hull(x[:-1], y[:-1])
    assert points[0].size == 300


def test_the_example_of_the_documentation_of_jax_privacy():
    auditor = CanaryScoreAuditor(np.arange(100) + 9.5, np.arange(100))
    assert auditor.tpr_at_given_fpr(0.01) == pytest.approx(0.11)
    assert auditor.attack_auroc() == pytest.approx(0.595)


def test_the_area_is_that_of_the_probability_for_many_scores():
    rng = np.random.default_rng(0)
    ins, outs = rng.normal(1, 1, 20_000), rng.normal(size=20_000)
    area = hull_area(ScoreCuts(ins, outs).counts())
    plain = stats.mannwhitneyu(ins, outs).statistic / ins.size / outs.size
    assert plain <= area < plain + 1e-3
    assert area == pytest.approx(stats.norm.cdf(1 / np.sqrt(2)), abs=0.01)


def test_extreme_areas():
    assert hull_area(ScoreCuts(np.ones(3), np.zeros(4)).counts()) == 1
    assert hull_area(ScoreCuts(np.zeros(3), np.ones(4)).counts()) == 0.5
    assert hull_area(ScoreCuts(np.zeros(3), np.zeros(4)).counts()) == 0.5


def test_accuracy_is_at_least_that_of_one_answer():
    assert best_accuracy(np.array([0.5]), np.array([0.5]), 0.9) == 0.9
    assert best_accuracy(np.array([0.5]), np.array([0.5]), 0.2) == 0.8
    assert best_accuracy(np.array([0.5]), np.array([0.1]), 0.5) == pytest.approx(0.7)
