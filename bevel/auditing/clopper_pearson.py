"""Lower bounds on epsilon from exact binomial confidence bounds (Clopper and Pearson, 1934).

If training is (epsilon, delta)-DP then, at every threshold, TPR <= exp(epsilon) FPR + delta and
1 - FPR <= exp(epsilon) (1 - TPR) + delta. A lower bound on the TPR and an upper bound on the FPR
therefore give a lower bound on epsilon. Both inequalities follow from the same two bounds, so using
the second one costs no significance.

The scores of each group must be independent draws from one distribution: one canary in each
training run, or canaries that do not influence each other's scores.
"""

import math

import numpy as np
from scipy import special

from bevel.auditing.arguments import Floats, Ints, checked_delta, checked_significance
from bevel.auditing.score_cuts import ScoreCuts
from bevel.auditing.thresholds import (
    Bonferroni,
    Explicit,
    MultiSplit,
    Split,
    ThresholdStrategy,
    split_size,
    unknown_strategy,
)
from bevel.checks import positive_number
from bevel.errors import FixArgumentsError

# A bound of 30 needs 1e13 canaries or more.
_LARGEST_EPSILON = 30
_ALL_COUNTS = 36  # up to here, eight in each octave are not fewer
_PER_OCTAVE = 8


def lower_bound(successes: Ints, trials: int | Ints, significance: float) -> Floats:
    """The p with Pr[Bin(trials, p) >= successes] = significance: p is below the rate with
    probability at most `significance`. It is 0 without successes."""
    found = special.betaincinv(np.maximum(successes, 1), trials - successes + 1, significance)
    return np.where(successes > 0, found, 0.0)


def upper_bound(successes: Ints, trials: int | Ints, significance: float) -> Floats:
    """The p with Pr[Bin(trials, p) <= successes] = significance, or 1 without failures."""
    failures = trials - successes
    found = special.betainccinv(successes + 1, np.maximum(failures, 1), significance)
    return np.where(failures > 0, found, 1.0)


def uniform_rate_bounds(cuts: ScoreCuts, significance: float) -> tuple[Floats, Floats]:
    """Lower bounds on the TPR and upper bounds on the FPR that hold at all thresholds at once.

    Returned for the corners of the ROC, where every bound in this package is largest. The bounds
    fail somewhere with probability at most `significance`.

    The observed scores are thresholds that depend on the data, so a union bound over them proves
    nothing. It is over counts instead. Fix some counts k < n of the n held-out canaries, and let
    u(k) be the upper bound for k false positives at level a. If some threshold with at most k false
    positives has an FPR above u(k), let s be the supremum of the thresholds with FPR > u(k), a
    fixed number. The FPR is right-continuous and does not grow with the threshold, so the threshold
    is below s, and at most k held-out scores are at least s, while the probability of such a score
    is at least u(k). By the definition of u(k), this happens with probability at most a. So with
    a = (significance / 2) / (number of fixed counts), no u(k) fails with probability at least
    1 - significance / 2. A threshold takes the u(k) of the next fixed count that is not below its
    own; if there is none, its bound is 1. The proof for the TPR and its misses is the same.
    """
    tp, fp = cuts.counts().corners()
    misses = _next_fixed(cuts.num_in - tp, cuts.num_in)
    false_positives = _next_fixed(fp, cuts.num_out)
    return (
        lower_bound(cuts.num_in - misses, cuts.num_in, significance / 2 / num_tests(cuts.num_in)),
        upper_bound(false_positives, cuts.num_out, significance / 2 / num_tests(cuts.num_out)),
    )


def fixed_counts(trials: int) -> Ints:
    """The counts below `trials` that `uniform_rate_bounds` fixes: all, or eight in each octave.

    The octaves are those of the distance to the nearer end, so that small and large counts are all
    there. Neighbours among the others hardly differ, and each would cost significance.
    """
    if trials < _ALL_COUNTS:
        return np.arange(trials)
    half = (trials - 1) // 2
    ends = np.floor(2 ** (np.arange(_PER_OCTAVE * math.log2(half + 1)) / _PER_OCTAVE))
    ends = np.append(0, ends[ends <= half]).astype(np.int64)
    return np.unique(np.append(ends, trials - 1 - ends))


def num_tests(trials: int) -> float:
    """At least the number of fixed counts, but a smooth function of `trials`.

    On each end there are 12 counts up to 11. A power 2^(i/8), rounded down, is above 11 from i = 29
    on, and below (trials + 1) / 2 only if i < 8 log2(trials + 1) - 8. So both ends together have at
    most 2 (12 + 8 log2(trials + 1) - 8 - 28) counts.
    """
    return trials if trials < _ALL_COUNTS else 2 * _PER_OCTAVE * math.log2(trials + 1) - 48


def _next_fixed(counts: Ints, trials: int) -> Ints:
    tested = np.append(fixed_counts(trials), trials)
    return tested[np.searchsorted(tested, counts)]


def epsilon_of_rates(tpr: Floats, fpr: Floats, delta: float, one_sided: bool) -> Floats:
    """The least epsilon that allows each pair of rates; -inf where every epsilon does.

    A rate of 0 in a denominator gives inf, unless the numerator is 0 too.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.maximum(tpr - delta, 0)) - np.log(fpr)
        if not one_sided:
            found = np.fmax(found, np.log(np.maximum(1 - fpr - delta, 0)) - np.log1p(-tpr))
    return np.where(np.isnan(found), -np.inf, found)


def clopper_pearson_epsilon(
    cuts: ScoreCuts,
    significance: float,
    delta: float,
    one_sided: bool,
    strategy: ThresholdStrategy,
) -> float:
    """The lower bound of `CanaryScoreAuditor.epsilon_clopper_pearson`."""
    match strategy:
        case Bonferroni():
            rates = uniform_rate_bounds(cuts, significance)
            return max(0.0, float(np.max(epsilon_of_rates(*rates, delta, one_sided))))
        case Explicit(threshold):
            cut = cuts.cut_at(threshold)
            tp, fp = (counts[cut : cut + 1] for counts in cuts.counts())
            sizes = cuts.num_in, cuts.num_out
            return float(_at_fixed(tp, fp, sizes, significance, delta, one_sided)[0])
        case Split(frac, seed):
            return float(_on_splits(cuts, 1, frac, seed, significance, delta, one_sided)[0])
        case MultiSplit(splits, frac, seed):
            bounds = _on_splits(cuts, splits, frac, seed, significance / 2, delta, one_sided)
            return float(np.median(bounds))
    raise unknown_strategy(strategy)


def fewest_canaries(
    epsilon: float,
    significance: float,
    delta: float = 0.0,
    *,
    threshold_strategy: ThresholdStrategy = Bonferroni(),  # noqa: B008 (frozen)
) -> int:
    """The number of canaries of each group without which no scores can show this epsilon.

    With fewer held-in and fewer held-out canaries, `CanaryScoreAuditor.epsilon_clopper_pearson` is
    below `epsilon` even if the scores separate the groups perfectly. Real attacks need more.
    """
    epsilon = positive_number("epsilon", epsilon, "the bound that you want to show, such as 1.0")
    significance, delta = checked_significance(significance), checked_delta(delta)
    if not isinstance(threshold_strategy, ThresholdStrategy):
        raise unknown_strategy(threshold_strategy)
    if epsilon > _LARGEST_EPSILON:
        raise FixArgumentsError(
            f"epsilon={epsilon:g}: no feasible number of canaries can show more than "
            f"{_LARGEST_EPSILON:g}."
        )
    if delta == 1:
        raise FixArgumentsError("delta=1 allows everything, so no epsilon can be shown: pass less.")

    def shown(canaries: int) -> float:
        level, counted = significance / 2, canaries
        match threshold_strategy:
            case Bonferroni():
                level /= num_tests(canaries)
            case Split(frac) | MultiSplit(threshold_estimation_frac=frac):
                counted = canaries - split_size(frac, canaries)
                level /= 2 if isinstance(threshold_strategy, MultiSplit) else 1
            case Explicit():
                pass
            case _:
                raise unknown_strategy(threshold_strategy)
        if counted < 1:
            return 0.0
        # level ** (1 / n) is the lower bound on a rate of n in n, and 1 minus it the upper of 0.
        rate = math.exp(math.log(level) / counted)
        return math.log(rate - delta) - math.log1p(-rate) if rate > delta else 0.0

    few, enough = 0, 1
    while shown(enough) < epsilon:
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if shown(middle) >= epsilon else (middle, enough)
    return enough


def _at_fixed(
    tp: Ints, fp: Ints, sizes: tuple[int, int], significance: float, delta: float, one_sided: bool
) -> Floats:
    """Bounds at thresholds that do not depend on the scores that are counted."""
    tpr = lower_bound(tp, sizes[0], significance / 2)
    fpr = upper_bound(fp, sizes[1], significance / 2)
    return np.maximum(epsilon_of_rates(tpr, fpr, delta, one_sided), 0)


def _on_splits(
    cuts: ScoreCuts,
    splits: int,
    frac: float,
    seed: int | None,
    significance: float,
    delta: float,
    one_sided: bool,
) -> Floats:
    """One bound for each split. Groups are split apart; a group of one canary shows nothing."""
    if min(cuts.num_in, cuts.num_out) < 2:
        return np.zeros(splits)
    rng = np.random.default_rng(seed)
    first_in, first_out = split_size(frac, cuts.num_in), split_size(frac, cuts.num_out)
    rest_in, rest_out = cuts.num_in - first_in, cuts.num_out - first_out
    # Corrected as for all thresholds: the choice then avoids thresholds with too few positives.
    tpr = wilson_bound(np.arange(first_in + 1), first_in, significance / 2 / first_in)
    misses = np.arange(first_out, -1, -1)
    fpr = 1 - wilson_bound(misses, first_out, significance / 2 / first_out)
    # The logarithms of epsilon_of_rates, once for all splits; 1e-300 stands for 0.
    above, below = (
        tuple(np.log(np.maximum(rates, 1e-300)) for rates in pair)
        for pair in ((tpr - delta, fpr), (1 - tpr, 1 - fpr - delta))
    )
    everyone = cuts.counts()
    left = np.empty((splits, 2), np.int64)
    for split in range(splits):
        tp, fp = cuts.counts(
            cuts.in_ranks[rng.choice(cuts.num_in, first_in, replace=False, shuffle=False)],
            cuts.out_ranks[rng.choice(cuts.num_out, first_out, replace=False, shuffle=False)],
        )
        # Of equally good cuts the first, which is at a score of this part and not of the other.
        promise = above[0][tp] - above[1][fp]
        if not one_sided:
            promise = np.maximum(promise, below[1][fp] - below[0][tp])
        cut = int(np.argmax(promise))
        left[split] = everyone[0][cut] - tp[cut], everyone[1][cut] - fp[cut]
    sizes = rest_in, rest_out
    return _at_fixed(left[:, 0], left[:, 1], sizes, significance, delta, one_sided)


def wilson_bound(successes: Ints, trials: int | Ints, significance: float) -> Floats:
    """Wilson's approximate lower bound on a rate: cheap, and used only to choose thresholds."""
    z2 = special.ndtri(significance) ** 2
    rate = successes / trials
    spread = np.sqrt(z2 * (rate * (1 - rate) / trials + z2 / (4 * trials**2)))
    return np.maximum((rate + z2 / (2 * trials) - spread) / (1 + z2 / trials), 0)
