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


@pytest.mark.parametrize("decimals", [9, 0])
def test_one_sided_numbers_of_guesses(decimals):
    ins, outs = scores(decimals=decimals)
    audit = audit_of(ScoreCuts(ins, outs), 0.05, True, Bonferroni(), 2)
    assert audit.most.tolist() == [8, 12, 17, 25, 35, 50, 70, 100]
    wanted = [slow_guesses(ins, outs, number, 0) for number in audit.most]
    assert list(zip(*audit.guesses, strict=True)) == wanted
    assert (audit.guesses.made <= audit.most).all() and audit.canaries == 100


@pytest.mark.parametrize("decimals", [9, 0])
def test_two_sided_numbers_of_guesses(decimals):
    ins, outs = scores(decimals=decimals)
    audit = audit_of(ScoreCuts(ins, outs), 0.05, False, Bonferroni(), 1)
    assert audit.most.tolist() == [24, 50, 100] + [100] * 7
    pairs = list(zip(*audit.guesses, strict=True))
    numbers = audit.most[: audit.most.size - 7] // 2
    assert pairs[: numbers.size] == [slow_guesses(ins, outs, n, n) for n in numbers]
    # All canaries are guessed, with one cut.
    assert (audit.guesses.made[-7:] == 100).all() and (audit.most[-7:] == 100).all()
    values = np.concatenate([ins, outs])
    for eighth, correct in enumerate(audit.guesses.correct[-7:], start=1):
        above = [v for v in values if (values >= v).sum() <= 100 * eighth // 8]
        cut = min(above, default=np.inf)
        assert correct == (ins >= cut).sum() + (outs < cut).sum()


def test_numbers_of_guesses_depend_on_the_number_of_canaries_only():
    for one_sided in (True, False):
        most = [
            audit_of(ScoreCuts(*scores(seed)), 0.05, one_sided, Bonferroni(), 4).most
            for seed in range(3)
        ]
        assert (most[0] == most[1]).all() and (most[0] == most[2]).all()


def test_an_explicit_threshold_guesses_above_it():
    ins, outs = scores()
    one = audit_of(ScoreCuts(ins, outs), 0.05, True, Explicit(0.5), 4)
    assert one.guesses.made == (ins > 0.5).sum() + (outs > 0.5).sum() and one.most is None
    assert one.guesses.correct == (ins > 0.5).sum()
    two = audit_of(ScoreCuts(ins, outs), 0.05, False, Explicit(0.5), 4)
    assert two.guesses.made == two.most == 100
    assert two.guesses.correct == (ins > 0.5).sum() + (outs <= 0.5).sum()


@pytest.mark.parametrize("one_sided", [True, False])
def test_splits_guess_only_the_rest(one_sided):
    cuts = ScoreCuts(np.ones(40), np.zeros(60))
    strategy = MultiSplit(20, threshold_estimation_frac=0.3, seed=0)
    audit = audit_of(cuts, 0.05, one_sided, strategy, 4)
    assert audit.canaries == 70 and audit.splits and audit.most is None
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
        audit = audit_of(cuts, 0.05, one_sided, Split(seed=5), 4)
        made.add(int(audit.guesses.made[0]))
    assert len(made) == 1


def test_the_median_of_splits_counts_and_the_best_of_ways():
    guesses = Guesses(np.full(3, 9), np.array([5, 6, 9]))
    bounds = np.array([0.0, 1.0, 5.0])
    assert Audit(guesses, 20).combined(bounds) == 5
    assert Audit(guesses, 20, splits=True).combined(bounds) == 1


def test_unknown_strategies_are_refused():
    with pytest.raises(FixArgumentsError, match="threshold_strategy='all'"):
        audit_of(ScoreCuts(*scores()), 0.05, True, "all", 4)
