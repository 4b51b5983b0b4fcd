"""Bootstrap quantiles, against scipy.stats.bootstrap and plain resampling."""

import numpy as np
import pytest
from scipy import stats

from bevel.auditing import BootstrapParams, CanaryScoreAuditor
from bevel.auditing.bootstrap import bootstrap_quantiles
from bevel.auditing.roc import hull_area
from bevel.auditing.score_cuts import Counts, ScoreCuts
from bevel.errors import FixArgumentsError


def scores(seed=0, ins=60, outs=45):
    rng = np.random.default_rng(seed)
    return rng.normal(1.2, 1, ins), rng.normal(size=outs)


@pytest.mark.parametrize(
    ("bias_correction", "acceleration", "method"),
    [(False, False, "percentile"), (True, True, "BCa")],
)
def test_quantiles_are_those_of_scipy(bias_correction, acceleration, method):
    ins, outs = scores()
    params = BootstrapParams(3000, (0.05, 0.95), bias_correction, acceleration, seed=1)
    found = CanaryScoreAuditor(ins, outs).attack_auroc(bootstrap_params=params)
    wanted = stats.bootstrap(
        (ins, outs),
        lambda a, b: CanaryScoreAuditor(a, b).attack_auroc(),
        n_resamples=3000,
        vectorized=False,
        confidence_level=0.9,
        method=method,
        rng=np.random.default_rng(2),
    ).confidence_interval
    np.testing.assert_allclose(found, wanted, atol=0.012)


def test_counts_of_a_resample_are_those_of_drawn_scores():
    """The mean and spread of the true positives at each cut are those of a binomial."""
    ins, outs = scores(ins=30)
    counts = ScoreCuts(ins, outs).counts()
    seen = []

    def statistic(resampled: Counts):
        seen.append(resampled)
        return 0.0

    params = BootstrapParams(2000, 0.5, bias_correction=False, seed=0)
    bootstrap_quantiles(counts, statistic, params)
    for group in (0, 1):
        drawn = np.array([resampled[group] for resampled in seen])
        total = counts[group][-1]
        assert (np.diff(drawn, axis=1) >= 0).all() and (drawn[:, -1] == total).all()
        rate = counts[group] / total
        np.testing.assert_allclose(drawn.mean(0), counts[group], atol=0.5)
        np.testing.assert_allclose(drawn.var(0), total * rate * (1 - rate), atol=1.0)


def test_bias_correction_centres_the_median():
    """The hull is too high on resamples, so corrected quantiles are lower."""
    auditor = CanaryScoreAuditor(*scores(ins=200, outs=200))
    plain, corrected = (
        auditor.attack_auroc(bootstrap_params=BootstrapParams(400, 0.5, correction, seed=0))
        for correction in (False, True)
    )
    assert isinstance(plain, float) and corrected < plain


def test_shapes_follow_the_quantiles_and_the_statistic():
    auditor = CanaryScoreAuditor(*scores())

    def shape(quantiles, fpr):
        params = BootstrapParams(20, quantiles, seed=0)
        return np.shape(auditor.tpr_at_given_fpr(fpr, bootstrap_params=params))

    assert shape(0.5, 0.1) == () and shape((0.1, 0.9), 0.1) == (2,)
    assert shape(0.5, [0.1, 0.2, 0.3]) == (3,)
    assert shape((0.1, 0.9), [0.1, 0.2, 0.3]) == (2, 3)


def test_extreme_quantiles_and_samples_without_spread():
    auditor = CanaryScoreAuditor(np.ones(9), np.zeros(9))
    for acceleration in (False, True):
        params = BootstrapParams(30, (0, 0.5, 1), acceleration=acceleration, seed=0)
        assert auditor.attack_auroc(bootstrap_params=params).tolist() == [1, 1, 1]
    auditor = CanaryScoreAuditor(*scores())
    low, high = auditor.attack_auroc(bootstrap_params=BootstrapParams(30, (0, 1), seed=0))
    samples = bootstrap_quantiles(
        ScoreCuts(*scores()).counts().corners(),
        hull_area,
        BootstrapParams(30, (0, 1), bias_correction=False, seed=0),
    )
    assert [low, high] == samples.tolist() and low < high


def test_quantiles_far_in_the_tails_stay_in_order():
    """The acceleration is -0.03 here, and Efron's formula turns round where it divides by 0."""
    auditor = CanaryScoreAuditor(np.append(np.arange(5.0), -30), [-20.0, -1.5, 0.5, 2.5])
    quantiles = (1e-300, 1e-100, 1e-9, 0.01, 0.5, 0.99)
    params = BootstrapParams(200, quantiles, acceleration=True, seed=0)
    assert (np.diff(auditor.attack_auroc(bootstrap_params=params)) >= 0).all()


def test_one_canary_can_be_resampled():
    params = BootstrapParams(10, acceleration=True, seed=0)
    assert CanaryScoreAuditor([1.0], [0.0]).attack_auroc(bootstrap_params=params).tolist() == [1, 1]


def test_seeds_make_results_repeatable():
    auditor = CanaryScoreAuditor(*scores())
    draws = [
        auditor.attack_auroc(bootstrap_params=BootstrapParams(50, seed=seed)).tolist()
        for seed in (1, 1, 2, None)
    ]
    assert draws[0] == draws[1] and draws[0] != draws[2] and draws[0] != draws[3]


def test_confidence_interval_has_equal_tails():
    params = BootstrapParams.confidence_interval(200, confidence=0.9, seed=3)
    assert params.num_samples == 200 and params.seed == 3
    np.testing.assert_allclose(params.quantiles, (0.05, 0.95))
    assert BootstrapParams() == BootstrapParams(1000, (0.025, 0.975), True, False, None)


def test_bad_settings_are_refused():
    with pytest.raises(FixArgumentsError, match=r"quantiles=\(0.5, 2\) must be between 0 and 1"):
        BootstrapParams(quantiles=(0.5, 2))
    with pytest.raises(FixArgumentsError, match="num_samples=0: pass an integer"):
        BootstrapParams(num_samples=0)
    with pytest.raises(FixArgumentsError, match="seed=-2: pass an integer"):
        BootstrapParams(seed=-2)
    with pytest.raises(FixArgumentsError, match="confidence=1 must be between 0 and 1"):
        BootstrapParams.confidence_interval(confidence=1)
