"""One-run bounds, against the theorem written as loops, and closed forms."""

import math

import numpy as np
import pytest
from scipy import special, stats

from bevel.auditing import Bonferroni, CanaryScoreAuditor, Explicit, MultiSplit, Split
from bevel.auditing.one_run import one_run_epsilon, one_run_p_value
from bevel.auditing.score_cuts import ScoreCuts

STRATEGIES = [Bonferroni(), Explicit(2.0), Split(seed=0), MultiSplit(9, seed=0)]


def theorem(correct, made, canaries, epsilon, delta):
    """Theorem 5.2 of Steinke, Nasr and Jagielski (2023), as it is written there."""
    tail = [stats.binom.sf(v - 1, made, special.expit(epsilon)) for v in range(correct + 1)]
    slopes = [(tail[correct - i] - tail[correct]) / i for i in range(1, correct + 1)]
    return min(1.0, tail[correct] + 2 * canaries * delta * max(slopes))


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("correct", "made"), [(5, 5), (30, 40), (95, 100), (700, 1000)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 4e-4])
def test_the_p_value_is_that_of_the_theorem(epsilon, correct, made, delta):
    found = one_run_p_value(correct, made, 1000, epsilon, delta)
    assert found == pytest.approx(theorem(correct, made, 1000, epsilon, delta), rel=1e-9)


@pytest.mark.parametrize("delta", [1e-3, 3e-3, 0.02])
def test_the_p_value_is_never_above_the_theorem_and_grows_with_epsilon(delta):
    found = [one_run_p_value(60, 80, 1000, epsilon, delta) for epsilon in np.linspace(0, 4, 30)]
    assert (np.diff(found) >= 0).all() and max(found) <= 1
    wanted = [theorem(60, 80, 1000, epsilon, delta) for epsilon in np.linspace(0, 4, 30)]
    assert all(f <= w + 1e-12 for f, w in zip(found, wanted, strict=True))


def epsilon_at(level, correct, made):
    """The epsilon at which so many correct guesses have the probability `level`."""
    return special.logit(special.betaincinv(correct, made - correct + 1, level))


def test_a_threshold_pays_for_the_leaks_of_all_canaries():
    auditor = CanaryScoreAuditor([1.0] * 60 + [0.0] * 40, [1.0] * 5 + [0.0] * 95)
    for delta in (0.0, 1e-4, 5e-4):
        found = auditor.epsilon_one_run(0.05, delta, threshold_strategy=Explicit(0.5))
        assert found == pytest.approx(epsilon_at(0.05 - 200 * delta / 4, 60, 65), rel=1e-9)
    assert auditor.epsilon_one_run(0.05, 1e-3, threshold_strategy=Explicit(0.5)) == 0


def test_two_sided_guesses_at_a_threshold_follow_the_theorem():
    auditor = CanaryScoreAuditor([1.0] * 90 + [0.0] * 10, [1.0] * 5 + [0.0] * 95)
    strategy = Explicit(0.5)
    without = auditor.epsilon_one_run(0.05, 0, False, threshold_strategy=strategy)
    assert without == pytest.approx(epsilon_at(0.05, 185, 200), rel=1e-9)
    found = auditor.epsilon_one_run(0.05, 1e-3, False, threshold_strategy=strategy)
    assert 0 < found < without
    assert (
        theorem(185, 200, 200, found - 1e-9, 1e-3)
        <= 0.05
        < theorem(185, 200, 200, found + 1e-6, 1e-3)
    )


def test_separated_scores_have_a_closed_form():
    cuts = ScoreCuts(np.ones(400), np.zeros(400))
    # 4 numbers of guesses in each octave from 800 down to 8 or more.
    ways = len({math.floor(800 / 2 ** (j / 4)) for j in range(27)})
    assert one_run_epsilon(cuts, 0.05, 0.0, True, Bonferroni()) == pytest.approx(
        epsilon_at(0.05 / ways, 400, 400), rel=1e-9
    )
    # All of the rest are guessed.
    found = one_run_epsilon(cuts, 0.05, 1e-5, False, Split(seed=1))
    assert found == pytest.approx(epsilon_at(0.05 - 400e-5 / 2, 400, 400), rel=1e-9)
    found = one_run_epsilon(cuts, 0.05, 1e-5, False, MultiSplit(9, seed=1))
    assert found == pytest.approx(epsilon_at(0.025 - 400e-5 / 2, 400, 400), rel=1e-9)


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_shown_from_equal_scores_or_with_delta_1(strategy, one_sided):
    equal = CanaryScoreAuditor(np.ones(200), np.ones(200))
    assert equal.epsilon_one_run(0.05, 1e-5, one_sided, threshold_strategy=strategy) == 0
    separated = CanaryScoreAuditor(np.ones(200) * 3, np.ones(200))
    assert separated.epsilon_one_run(0.05, 1.0, one_sided, threshold_strategy=strategy) == 0
