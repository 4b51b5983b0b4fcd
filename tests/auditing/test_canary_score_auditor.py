"""The auditor's methods: estimates against loops, and what all of them have in common."""

import math
import time

import numpy as np
import pytest

from bevel.auditing import (
    Bonferroni,
    BootstrapParams,
    CanaryScoreAuditor,
    Explicit,
    MultiSplit,
    Split,
)
from bevel.errors import FixArgumentsError

STRATEGIES = [Bonferroni(), Split(seed=0), MultiSplit(11, seed=0)]


def scores(seed=0, canaries=400, decimals=9):
    rng = np.random.default_rng(seed)
    return rng.normal(2, 1, canaries).round(decimals), rng.normal(size=canaries + 7).round(decimals)


def bounds(auditor, significance=0.05, delta=1e-5, strategies=STRATEGIES):
    """Every lower bound on epsilon, by name."""
    found = {"gdp": auditor.epsilon_from_gdp(significance, delta)}
    for name in ("epsilon_clopper_pearson", "epsilon_one_run", "epsilon_one_run_fdp"):
        for one_sided in (True, False):
            for strategy in strategies:
                found[name, one_sided, strategy] = getattr(auditor, name)(
                    significance, delta, one_sided, threshold_strategy=strategy
                )
    return found


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("delta", [0, 0.05])
@pytest.mark.parametrize("decimals", [9, 1])
def test_raw_counts_are_the_best_ratio_of_a_loop(one_sided, delta, decimals):
    ins, outs = scores(decimals=decimals)
    wanted = 0.0
    for threshold in np.concatenate([ins, outs]):
        tp, fp = (ins >= threshold).sum(), (outs >= threshold).sum()
        if fp >= 30:
            wanted = max(wanted, math.log(max((tp / 400 - delta) / (fp / 407), 1)))
        if not one_sided and 400 - tp >= 30:
            wanted = max(wanted, math.log(max((1 - fp / 407 - delta) / (1 - tp / 400), 1)))
    found = CanaryScoreAuditor(ins, outs).epsilon_raw_counts(30, delta, one_sided)
    assert isinstance(found, float) and found == pytest.approx(wanted) and wanted > 1


def test_raw_counts_of_a_bootstrap_enclose_the_estimate():
    auditor = CanaryScoreAuditor(*scores())
    params = BootstrapParams.confidence_interval(200, 0.99, seed=0)
    for one_sided in (True, False):
        estimate = auditor.epsilon_raw_counts(20, one_sided=one_sided)
        low, high = auditor.epsilon_raw_counts(20, one_sided=one_sided, bootstrap_params=params)
        assert 0 <= low < estimate < high


def test_raw_counts_need_enough_canaries():
    auditor = CanaryScoreAuditor(np.ones(80), np.zeros(49))
    with pytest.warns(UserWarning, match="min_count=50 is more than the 49 canaries.*smaller"):
        assert auditor.epsilon_raw_counts() == 0
    assert auditor.epsilon_raw_counts(49) == 0  # all are positive then
    assert CanaryScoreAuditor(np.zeros(80), np.ones(80)).epsilon_raw_counts() == 0
    with pytest.raises(FixArgumentsError, match="min_count=0: pass an integer of at least 1"):
        auditor.epsilon_raw_counts(0)


def test_accuracy_is_that_of_the_best_threshold():
    ins, outs = scores()
    auditor = CanaryScoreAuditor(ins, outs)
    for prevalence in (None, 0.5, 0.1):
        share = 400 / 807 if prevalence is None else prevalence
        wanted = max(
            share * (ins >= t).mean() + (1 - share) * (outs < t).mean()
            for t in np.concatenate([ins, outs])
        )
        assert auditor.max_accuracy(prevalence=prevalence) == pytest.approx(wanted)
        bound = auditor.max_accuracy(prevalence=prevalence, significance=0.05)
        assert max(share, 1 - share) <= bound < wanted
    many = CanaryScoreAuditor(*scores(canaries=100_000))
    assert many.max_accuracy(significance=0.05) == pytest.approx(many.max_accuracy(), abs=0.01)


def test_rates_are_scalars_or_arrays_as_asked():
    auditor = CanaryScoreAuditor(*scores())
    rate = auditor.tpr_at_given_fpr(0.1)
    assert isinstance(rate, float) and 0.1 < rate < 1
    assert auditor.tpr_at_given_fpr([0.1, 1.0]).tolist() == [rate, 1.0]
    assert auditor.tpr_at_given_fpr(np.full((2, 3), 0.1)).shape == (2, 3)
    with pytest.raises(FixArgumentsError, match="fpr=2 must be between 0 and 1"):
        auditor.tpr_at_given_fpr(2)


def test_only_the_order_of_scores_matters():
    ins, outs = scores(decimals=1)
    plain = bounds(CanaryScoreAuditor(ins, outs))
    for transform in (np.exp, np.arctan, lambda x: 3 * x - 5):
        assert bounds(CanaryScoreAuditor(transform(ins), transform(outs))) == plain
    shuffled = np.random.default_rng(1).permutation(ins), outs[::-1]
    assert bounds(CanaryScoreAuditor(*shuffled)) == plain


def test_infinite_scores_count_as_the_highest_and_lowest():
    ins, outs = scores()
    highest, lowest = ins.max(), outs.min()
    replaced = np.where(ins == highest, np.inf, ins), np.where(outs == lowest, -np.inf, outs)
    assert bounds(CanaryScoreAuditor(*replaced)) == bounds(CanaryScoreAuditor(ins, outs))


def test_bounds_fall_with_delta_and_grow_with_significance():
    auditor = CanaryScoreAuditor(*scores())
    for changed in (
        [bounds(auditor, delta=delta) for delta in (0.3, 0.01, 1e-5)],
        [bounds(auditor, significance=significance) for significance in (0.001, 0.05, 0.4)],
    ):
        for name in changed[0]:
            # Another significance may choose another threshold in a split.
            slack = 0.15 if name != "gdp" and not isinstance(name[2], Bonferroni) else 0
            low, middle, high = (found[name] for found in changed)
            assert low <= middle + slack and middle <= high + slack, name


def test_two_sided_clopper_pearson_is_never_below_one_sided():
    auditor = CanaryScoreAuditor(*scores())
    for strategy in (Bonferroni(), Explicit(1.0)):
        one, two = (
            auditor.epsilon_clopper_pearson(0.05, 1e-5, side, threshold_strategy=strategy)
            for side in (True, False)
        )
        assert two >= one


def test_nothing_is_shown_from_scores_without_information():
    for ins, outs in [(np.ones(300), np.ones(300)), (np.zeros(300), np.ones(300)), ([1.0], [0.0])]:
        found = bounds(CanaryScoreAuditor(ins, outs))
        assert set(found.values()) == {0.0}, found
        assert all(type(value) is float for value in found.values())


def test_arguments_of_bounds_are_checked():
    auditor = CanaryScoreAuditor(*scores())
    for name in ("epsilon_clopper_pearson", "epsilon_one_run", "epsilon_one_run_fdp"):
        with pytest.raises(FixArgumentsError, match=r"significance=1\.5 must be at least 1e-300"):
            getattr(auditor, name)(1.5, 1e-5)
        with pytest.raises(FixArgumentsError, match="delta=-1 must be between 0 and 1"):
            getattr(auditor, name)(0.05, -1)
        with pytest.raises(FixArgumentsError, match="threshold_strategy='best'"):
            getattr(auditor, name)(0.05, 1e-5, threshold_strategy="best")
    with pytest.raises(FixArgumentsError, match="eps_tol=0: pass a positive number"):
        auditor.epsilon_from_gdp(0.05, 1e-5, 0)


def test_a_bound_from_many_scores_takes_at_most_a_second():
    """Of processor time, from 1e5 scores. `MultiSplit` combines a hundred splits."""
    auditor = CanaryScoreAuditor(*scores(canaries=100_000))
    for name in ("epsilon_clopper_pearson", "epsilon_one_run", "epsilon_one_run_fdp"):
        for strategy in (Bonferroni(), Explicit(2.0), Split(seed=0), MultiSplit(seed=0)):
            start = time.process_time()
            getattr(auditor, name)(0.05, 1e-7, False, threshold_strategy=strategy)
            limit = 2 if isinstance(strategy, MultiSplit) else 1
            assert time.process_time() - start < limit, (name, strategy)


@pytest.mark.parametrize("name", ["attack_auroc", "epsilon_raw_counts"])
def test_a_thousand_resamples_take_at_most_ten_seconds(name):
    """Of processor time, from 1e5 scores."""
    auditor = CanaryScoreAuditor(*scores(canaries=100_000))
    start = time.process_time()
    getattr(auditor, name)(bootstrap_params=BootstrapParams(1000, seed=0))
    assert time.process_time() - start < 10
