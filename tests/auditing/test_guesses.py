"""Guesses of one run, against loops over canaries."""

import numpy as np
import pytest

from bevel.auditing import Bonferroni, Explicit, MultiSplit, Split
from bevel.auditing.guesses import Audit, Guesses, audit_of
from bevel.auditing.score_cuts import ScoreCuts
from bevel.errors import FixArgumentsError


def scores(seed=0, canaries=100, decimals=9):
    rng = np.random.default_rng(seed)
    held_in = rng.random(canaries) < 0.5
    values = (held_in + rng.normal(size=canaries)).round(decimals)
    return values[held_in], values[~held_in]


def slow_guesses(ins, outs, number_in, number_out):
    """The highest scores guessed held in, the lowest held out, up to these numbers."""
    values = np.concatenate([ins, outs])
    coins = np.concatenate([np.ones(ins.size), np.zeros(outs.size)])
    guess_in = np.array([(values >= v).sum() <= number_in for v in values])
    guess_out = np.array([(values <= v).sum() <= number_out for v in values])
    correct = (guess_in & (coins == 1)).sum() + (guess_out & (coins == 0)).sum()
    return guess_in.sum() + guess_out.sum(), correct


@pytest.mark.parametrize(
    ("few_ways", "one_sided", "numbers"),
    [
        (True, True, [333, 83, 20]),
        (True, False, [250, 62, 15]),
        (False, True, [500, 250, 125, 62, 31, 15]),
        (False, False, [500, 250, 125, 62, 31, 15]),
    ],
)
def test_numbers_of_guesses(few_ways, one_sided, numbers):
    ins, outs = scores(canaries=1000)
    audit = audit_of(ScoreCuts(ins, outs), 0.05, one_sided, Bonferroni(), few_ways)
    wanted = [slow_guesses(ins, outs, number, 0 if one_sided else number) for number in numbers]
    assert list(zip(*audit.guesses, strict=True)) == wanted
    assert audit.canaries == 1000 and audit.ways == len(numbers) and audit.fixed


def test_of_equal_scores_random_ones_are_guessed():
    cuts = ScoreCuts(np.repeat([1.0, 0.0], [3000, 1000]), np.repeat([1.0, 0.0], [1000, 3000]))
    audit = audit_of(cuts, 0.05, True, Bonferroni(), few_ways=False)
    assert (audit.guesses.made == 8000 // 2 ** np.arange(1, 10)).all()
    share = audit.guesses.correct / audit.guesses.made
    assert share[0] == 0.75 and np.abs(share[:4] - 0.75).max() < 0.05


def test_numbers_of_guesses_depend_on_the_number_of_canaries_only():
    for one_sided in (True, False):
        audits = [
            audit_of(ScoreCuts(*scores(seed)), 0.05, one_sided, Bonferroni(), few_ways)
            for seed in range(3)
            for few_ways in (True, False)
        ]
        assert len({tuple(audit.guesses.made) for audit in audits}) == 2


@pytest.mark.parametrize("few_ways", [True, False])
@pytest.mark.parametrize("one_sided", [True, False])
def test_two_canaries_are_enough_to_guess(one_sided, few_ways):
    cuts = ScoreCuts(np.ones(1), np.zeros(1))
    audit = audit_of(cuts, 0.05, one_sided, Bonferroni(), few_ways)
    assert audit.ways == audit.guesses.made.size == 1


def test_an_explicit_threshold_guesses_above_it():
    ins, outs = scores()
    one = audit_of(ScoreCuts(ins, outs), 0.05, True, Explicit(0.5), False)
    assert one.guesses.made == (ins > 0.5).sum() + (outs > 0.5).sum() and not one.fixed
    assert one.guesses.correct == (ins > 0.5).sum()
    two = audit_of(ScoreCuts(ins, outs), 0.05, False, Explicit(0.5), False)
    assert two.guesses.made == 100 and two.fixed
    assert two.guesses.correct == (ins > 0.5).sum() + (outs <= 0.5).sum()


@pytest.mark.parametrize("one_sided", [True, False])
def test_splits_guess_only_the_rest(one_sided):
    cuts = ScoreCuts(np.ones(40), np.zeros(60))
    strategy = MultiSplit(20, threshold_estimation_frac=0.3, seed=0)
    audit = audit_of(cuts, 0.05, one_sided, strategy, False)
    assert audit.canaries == 70 and audit.splits and not audit.fixed
    assert (audit.guesses.correct == audit.guesses.made).all()  # separated scores
    if one_sided:
        assert len(set(audit.guesses.made)) > 1 and (audit.guesses.made <= 40).all()
    else:
        assert (audit.guesses.made == 70).all()


@pytest.mark.parametrize("one_sided", [True, False])
def test_a_split_does_not_look_at_the_coins_of_the_rest(one_sided):
    """The number of guesses is the same if other canaries of the rest are held in."""
    values = np.arange(40.0)
    made = set()
    for flipped in range(40):
        coins = np.arange(40) % 3 == 0
        coins[flipped] ^= True
        chosen = np.random.default_rng(5).choice(40, 20, replace=False, shuffle=False)
        # Ranks count from the highest score, and the split is drawn over ranks.
        if 39 - flipped in chosen:
            continue
        cuts = ScoreCuts(values[coins], values[~coins])
        audit = audit_of(cuts, 0.05, one_sided, Split(seed=5), False)
        made.add(int(audit.guesses.made[0]))
    assert len(made) == 1


def test_the_median_of_splits_counts_and_the_best_of_ways():
    guesses = Guesses(np.full(3, 9), np.array([5, 6, 9]))
    bounds = np.array([0.0, 1.0, 5.0])
    assert Audit(guesses, 0.05, 20).combined(bounds) == 5
    assert Audit(guesses, 0.05, 20, splits=True).combined(bounds) == 1


def test_unknown_strategies_are_refused():
    with pytest.raises(FixArgumentsError, match="threshold_strategy='all'"):
        audit_of(ScoreCuts(*scores()), 0.05, True, "all", False)
