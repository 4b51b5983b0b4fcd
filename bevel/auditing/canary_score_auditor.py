"""`CanaryScoreAuditor`: how much privacy was lost, from the scores of canaries."""

import math
import warnings

import numpy as np
import numpy.typing as npt

from bevel.auditing.arguments import (
    Floats,
    checked_delta,
    checked_fpr,
    checked_prevalence,
    checked_scores,
    checked_significance,
)
from bevel.auditing.bootstrap import BootstrapParams, Statistic, bootstrap_quantiles
from bevel.auditing.clopper_pearson import (
    clopper_pearson_epsilon,
    uniform_rate_bounds,
)
from bevel.auditing.gaussian_tradeoff import gaussian_epsilon, mu_lower_bound
from bevel.auditing.one_run import one_run_epsilon
from bevel.auditing.one_run_fdp import one_run_fdp_epsilon
from bevel.auditing.roc import best_accuracy, hull_area, hull_tpr
from bevel.auditing.score_cuts import Counts, ScoreCuts
from bevel.auditing.thresholds import Bonferroni, ThresholdStrategy
from bevel.checks import flag, instance, positive_number, whole_number


class CanaryScoreAuditor:
    """Lower bounds on epsilon and attack metrics from scores of held-in and held-out canaries.

    A higher score means that the canary is more likely held in. Negate scores such as losses, for
    which this is the other way round. Only the order of the scores matters, and infinite scores are
    allowed.

    Methods with a `significance` are lower bounds that exceed the truth with at most that
    probability. They are 0 if nothing can be shown, for example from too few canaries
    (`bevel.auditing.fewest_canaries` says how many are needed), and never prove that training is
    private. Methods with `bootstrap_params` are estimates. No result is negative.

    What the canaries must satisfy:

    | method | canaries |
    | --- | --- |
    | `epsilon_clopper_pearson`, `epsilon_from_gdp`, `max_accuracy` | scores of each group are independent draws, as from one training run for each canary |
    | `epsilon_one_run`, `epsilon_one_run_fdp` | all in one training run, each held in by an independent fair coin; scores may depend on each other |
    """  # noqa: E501 (a table)

    def __init__(self, in_canary_scores: npt.ArrayLike, out_canary_scores: npt.ArrayLike) -> None:
        self._cuts = ScoreCuts(
            checked_scores("in_canary_scores", in_canary_scores),
            checked_scores("out_canary_scores", out_canary_scores),
        )

    def epsilon_clopper_pearson(
        self,
        significance: float,
        delta: float = 0,
        one_sided: bool = True,
        *,
        threshold_strategy: ThresholdStrategy = Bonferroni(),  # noqa: B008 (frozen)
    ) -> float:
        """A lower bound on epsilon from exact confidence bounds on the TPR and the FPR.

        It is log((TPR - delta) / FPR) with a lower bound on the TPR and an upper bound on the FPR,
        each at half the significance. `one_sided=False` also uses log((1 - FPR - delta) /
        (1 - TPR)), which needs no correction, because it follows from the same two bounds.

        - `Bonferroni()`: all thresholds, each rate corrected for the counts that are told apart.
        - `Explicit(t)`: the threshold t, without a correction.
        - `Split()`: part of each group chooses the threshold, the rest is counted.
        - `MultiSplit()`: the median of many splits, each at half the significance.
        """
        significance, delta = checked_significance(significance), checked_delta(delta)
        return clopper_pearson_epsilon(
            self._cuts, significance, delta, flag("one_sided", one_sided), threshold_strategy
        )

    def epsilon_raw_counts(
        self,
        min_count: int = 50,
        delta: float = 0,
        one_sided: bool = True,
        *,
        bootstrap_params: BootstrapParams | None = None,
    ) -> float | np.ndarray:
        """An estimate of epsilon from observed rates, without a guarantee.

        The largest log((TPR - delta) / FPR) over all thresholds with at least `min_count` false
        positives. `one_sided=False` also tries log((1 - FPR - delta) / (1 - TPR)) at thresholds
        with at least `min_count` false negatives. Smaller counts make the estimate noisier and its
        upward bias larger. With `bootstrap_params`, returns quantiles of the estimate.
        """
        min_count, delta = whole_number("min_count", min_count), checked_delta(delta)
        flag("one_sided", one_sided)
        cuts = self._cuts
        countable = cuts.num_out if one_sided else max(cuts.num_in, cuts.num_out)
        if countable < min_count:
            warnings.warn(
                f"min_count={min_count} is more than the {countable} canaries that can be false "
                "positives, so the estimate is 0. Pass a smaller min_count or more scores.",
                stacklevel=2,
            )

        def statistic(counts: Counts) -> float:
            return _raw_epsilon(counts, min_count, delta, one_sided)

        return _estimate(cuts.counts().edges(one_sided), statistic, bootstrap_params)

    def tpr_at_given_fpr(
        self, fpr: npt.ArrayLike, *, bootstrap_params: BootstrapParams | None = None
    ) -> np.ndarray | float:
        """The highest true-positive rate at a false-positive rate, or at each of an array of them.

        Taken on the convex hull of the ROC: an attacker may choose between two thresholds at
        random. With `bootstrap_params`, returns quantiles along the first axes.
        """
        rates = checked_fpr(fpr)
        return _estimate(
            self._cuts.counts().corners(),
            lambda counts: hull_tpr(counts, rates),
            bootstrap_params,
        )

    def attack_auroc(
        self, *, bootstrap_params: BootstrapParams | None = None
    ) -> float | np.ndarray:
        """The area under the convex hull of the ROC, or its bootstrap quantiles.

        It is at least the area under the ROC itself, and at least 0.5.
        """
        return _estimate(self._cuts.counts().corners(), hull_area, bootstrap_params)

    def max_accuracy(
        self, *, prevalence: float | None = None, significance: float | None = None
    ) -> float:
        """The accuracy of the best threshold, at least that of always giving the same answer.

        Args:
            prevalence: The prior probability that an example is held in. None is the share of
                held-in canaries.
            significance: If given, returns a lower bound on the best accuracy instead of the
                observed one, from confidence bounds that hold at all thresholds at once.
        """
        cuts = self._cuts
        if prevalence is None:
            prevalence = cuts.num_in / (cuts.num_in + cuts.num_out)
        prevalence = checked_prevalence(prevalence)
        if significance is None:
            tp, fp = cuts.counts()
            return best_accuracy(tp / cuts.num_in, fp / cuts.num_out, prevalence)
        rates = uniform_rate_bounds(cuts, checked_significance(significance))
        return best_accuracy(*rates, prevalence)

    def epsilon_from_gdp(self, significance: float, delta: float, eps_tol: float = 1e-6) -> float:
        """A lower bound on epsilon if training is Gaussian-DP for some mu.

        A lower bound on mu from confidence bounds on the TPR and the FPR at all thresholds, and
        then the epsilon of that mu at `delta`, at most `eps_tol` too low. It is much higher than
        `epsilon_clopper_pearson` for Gaussian noise, but it is a bound only if the privacy of
        training is that of some Gaussian mechanism. For delta = 0 it is 0 or inf.
        """
        significance, delta = checked_significance(significance), checked_delta(delta)
        tolerance = positive_number("eps_tol", eps_tol, "the error of epsilon, such as 1e-6")
        return gaussian_epsilon(mu_lower_bound(self._cuts, significance), delta, tolerance)

    def epsilon_one_run(
        self,
        significance: float,
        delta: float,
        one_sided: bool = True,
        *,
        threshold_strategy: ThresholdStrategy = Bonferroni(),  # noqa: B008 (frozen)
    ) -> float:
        """A lower bound on epsilon from canaries of one training run.

        Each canary must have been held in by an independent fair coin. Canaries above a threshold
        are guessed held in; `one_sided=False` also guesses canaries below a second threshold, or
        below the same one, held out. `bevel/auditing/one_run.py` has the theorem.

        - `Bonferroni()`: the highest half of the scores, the highest quarter, and so on, down to
          eight canaries. `one_sided=False` also guesses as many of the lowest scores. Of equal
          scores, random ones are guessed.
        - `Explicit(t)`: guesses scores above t held in and, if not one-sided, the others held out.
        - `Split()`, `MultiSplit()`: a part of the canaries chooses the thresholds for the rest.

        Delta costs a significance of at most delta / 4 (one-sided) or delta / 2 for each canary. If
        this is more than half the significance, a few correct guesses are given up instead.
        """
        significance, delta = checked_significance(significance), checked_delta(delta)
        return one_run_epsilon(
            self._cuts, significance, delta, flag("one_sided", one_sided), threshold_strategy
        )

    def epsilon_one_run_fdp(
        self,
        significance: float,
        delta: float,
        one_sided: bool = True,
        *,
        threshold_strategy: ThresholdStrategy = Bonferroni(),  # noqa: B008 (frozen)
    ) -> float:
        """A lower bound on epsilon from one training run, if training is Gaussian-DP for some mu.

        Guesses are made as in `epsilon_one_run`. They give a lower bound on mu, and this the
        epsilon at `delta`. `Bonferroni()` tries only three numbers of guesses: a third, a twelfth
        and a 48th of the canaries, or a half, an eighth and a 32nd if not one-sided. Otherwise,
        the number of guesses is random, unless it is that of a two-sided `Explicit(t)`, and the
        significance is divided by the number of canaries. So `Bonferroni()` is usually best.
        `bevel/auditing/one_run_fdp.py` has the theorem.
        """
        significance, delta = checked_significance(significance), checked_delta(delta)
        return one_run_fdp_epsilon(
            self._cuts, significance, delta, flag("one_sided", one_sided), threshold_strategy
        )


def _estimate(
    counts: Counts, statistic: Statistic, bootstrap_params: BootstrapParams | None
) -> np.ndarray | float:
    """The statistic of the scores or its bootstrap quantiles; a float if it is one number."""
    hint = "BootstrapParams(...), or None"
    instance("bootstrap_params", bootstrap_params, BootstrapParams | None, hint)
    if bootstrap_params is None:
        found: Floats | float = statistic(counts)
    else:
        found = bootstrap_quantiles(counts, statistic, bootstrap_params)
    return found if np.ndim(found) else float(found)


def _raw_epsilon(counts: Counts, min_count: int, delta: float, one_sided: bool) -> float:
    """The largest log-ratio of observed rates whose denominator counts at least `min_count`."""
    tp, fp = counts
    held_in, held_out = tp[-1], fp[-1]
    first = np.searchsorted(fp, min_count)
    ratio = _largest_ratio(tp[first:] / held_in - delta, fp[first:] / held_out)
    if not one_sided:
        end = np.searchsorted(tp, held_in - min_count, side="right")
        tnr, fnr = (held_out - fp[:end]) / held_out, (held_in - tp[:end]) / held_in
        ratio = max(ratio, _largest_ratio(tnr - delta, fnr))
    return math.log(ratio)


def _largest_ratio(numerator: Floats, denominator: Floats) -> float:
    """At least 1, so that no estimate is negative."""
    return float(np.max(numerator / denominator, initial=1.0))
