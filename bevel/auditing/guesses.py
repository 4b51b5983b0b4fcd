"""Guesses in an audit with one training run: which canaries are called held in or held out.

All canaries are in one game: a fair coin decides for each whether it is held in, the model is
trained once, and the attacker guesses some of the coins from the scores. Canaries above a first cut
are guessed held in. If the audit is one-sided, that is all; otherwise canaries below a second cut
are guessed held out. There are no guesses for the others.

The canaries of a split are drawn without regard to their coins, which therefore stay fair.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bevel.auditing.arguments import Floats, Ints
from bevel.auditing.clopper_pearson import wilson_bound
from bevel.auditing.score_cuts import Counts, ScoreCuts
from bevel.auditing.thresholds import (
    Bonferroni,
    Explicit,
    MultiSplit,
    Split,
    ThresholdStrategy,
    split_size,
    unknown_strategy,
)

_FEWEST = 8  # guesses: fewer correct ones show next to nothing
_FEW_WAYS = 3


class Guesses(NamedTuple):
    """Numbers of guesses, and of correct ones, for several ways to guess."""

    made: Ints
    correct: Ints


@dataclasses.dataclass(frozen=True)
class Audit:
    """The guesses of an audit, and what its bounds must be corrected for.

    Attributes:
        guesses: One entry for each way to guess, or for each split.
        significance: That of the bound of a way, before the correction for several ways.
        canaries: The number of canaries in the game.
        ways: The number of ways to guess, of which the best counts.
        fixed: Whether the number of guesses of each way is fixed before the scores are seen.
        splits: Whether the guesses are those of several splits, of which the median counts.
    """

    guesses: Guesses
    significance: float
    canaries: int
    ways: int = 1
    fixed: bool = False
    splits: bool = False

    def combined(self, bounds: Floats) -> float:
        """The highest bound, or the median of those of splits."""
        return float(np.median(bounds) if self.splits else np.max(bounds))


def audit_of(
    cuts: ScoreCuts,
    significance: float,
    one_sided: bool,
    strategy: ThresholdStrategy,
    few_ways: bool,
) -> Audit:
    """The guesses of a strategy.

    `Bonferroni` does not try all numbers of guesses, because neighbours hardly differ, and each
    costs significance. It halves the canaries until few are left or, with `few_ways`, tries three
    numbers. They depend on nothing but the number of canaries.
    """
    counts, canaries = cuts.counts(), cuts.num_in + cuts.num_out
    match strategy:
        case Bonferroni():
            return _all_ways(cuts, significance, one_sided, few_ways)
        case Explicit(threshold):
            cut = np.array([cuts.cut_at(threshold)])
            if one_sided:
                last = np.array([cuts.num_values])
                return Audit(_guesses(counts, cut, last), significance, canaries)
            return Audit(_guesses(counts, cut, cut), significance, canaries, fixed=True)
        case Split(frac, seed):
            return _audit_of_splits(cuts, significance, one_sided, 1, frac, seed)
        case MultiSplit(splits, frac, seed):
            audit = _audit_of_splits(cuts, significance / 2, one_sided, splits, frac, seed)
            return dataclasses.replace(audit, splits=True)
    raise unknown_strategy(strategy)


def _all_ways(cuts: ScoreCuts, significance: float, one_sided: bool, few_ways: bool) -> Audit:
    """The highest scores guessed held in and, unless one-sided, as many of the lowest held out.

    Of equal scores, random ones are guessed, so the number of guesses is fixed.
    """
    canaries = cuts.num_in + cuts.num_out
    ranks = np.concatenate([cuts.in_ranks, cuts.out_ranks])
    order = np.lexsort((np.random.default_rng(0).random(canaries), ranks))
    tp = np.append(0, np.cumsum(order < cuts.num_in))
    counts = Counts(tp, np.arange(canaries + 1) - tp)
    numbers = _few_numbers(canaries, one_sided) if few_ways else _many_numbers(canaries)
    last = np.full_like(numbers, canaries)
    guesses = _guesses(counts, numbers, last if one_sided else last - numbers)
    return Audit(guesses, significance, canaries, numbers.size, fixed=True)


def _many_numbers(canaries: int) -> Ints:
    """How many of the highest scores are guessed: a half, a quarter, and so on, down to a few."""
    halvings = int(np.log2(max(canaries / 2 / _FEWEST, 1)))
    return canaries // 2 ** np.arange(1, halvings + 2)


def _few_numbers(canaries: int, one_sided: bool) -> Ints:
    """How many of the highest scores are guessed: one-sided, a third, a twelfth and a 48th, and
    otherwise a quarter, a sixteenth and a 64th, with as many of the lowest.

    Other numbers may be better for some mu and some number of canaries, but these are never bad:
    many guesses are best for a large mu, few for a small mu and many canaries.
    """
    numbers = canaries // (3 if one_sided else 4) // 4 ** np.arange(_FEW_WAYS)
    return np.maximum(numbers[numbers >= _FEWEST] if numbers[0] >= _FEWEST else numbers[:1], 1)


def _guesses(counts: Counts, first: Ints, second: Ints) -> Guesses:
    tp, fp = counts
    below = tp[-1] + fp[-1] - tp[second] - fp[second]
    return Guesses(tp[first] + fp[first] + below, tp[first] + fp[-1] - fp[second])


def _audit_of_splits(
    cuts: ScoreCuts,
    significance: float,
    one_sided: bool,
    splits: int,
    frac: float,
    seed: int | None,
) -> Audit:
    """The guesses on the rest of the canaries, with the cuts that are best on the first part."""
    everyone, canaries = cuts.counts(), cuts.num_in + cuts.num_out
    ranks = np.concatenate([cuts.in_ranks, cuts.out_ranks])
    order = np.argsort(ranks, kind="stable")
    ranks, held_in = ranks[order], order < cuts.num_in
    size = split_size(frac, canaries)
    made, correct = np.zeros(splits, np.int64), np.zeros(splits, np.int64)
    rng = np.random.default_rng(seed)
    for split in range(splits):
        mask = np.zeros(canaries, bool)
        mask[rng.choice(canaries, size, replace=False, shuffle=False)] = True
        # Cuts at scores of this part only, so that the choice does not depend on the rest.
        part_ranks, part_in = ranks[mask], held_in[mask]
        ends = np.flatnonzero(np.diff(part_ranks, append=cuts.num_values) > 0)
        cut = np.append(0, part_ranks[ends] + 1)
        tp = np.append(0, np.cumsum(part_in)[ends])
        part = Counts(tp, np.append(0, ends + 1) - tp)
        first, second = _pairs_of_cuts(part, one_sided)
        guesses = _guesses(part, first, second)
        promise = wilson_bound(guesses.correct, guesses.made, significance / size)
        best = int(np.argmax(promise))
        chosen = np.array([first[best], second[best], cut.size - 1])
        places = cut[chosen]
        places[chosen == cut.size - 1] = cuts.num_values  # nothing lies below the last cut
        rest = Counts(*(everyone[i][places] - part[i][chosen] for i in (0, 1)))
        found = _guesses(rest, np.array([0]), np.array([1]))
        made[split], correct[split] = found.made[0], found.correct[0]
    return Audit(Guesses(made, correct), significance, canaries - size)


def _pairs_of_cuts(part: Counts, one_sided: bool) -> tuple[Ints, Ints]:
    """First and second cuts: one-sided all first ones, otherwise also as many canaries below.

    Two-sided, these are all single cuts, with a guess for every canary, and all first cuts in the
    upper half, with the second cut below which there are at most as many canaries.
    """
    above = part.true_positives + part.false_positives
    every = np.arange(1, above.size)
    if one_sided:
        return every, np.full_like(every, above.size - 1)
    top = every[2 * above[every] <= above[-1]]
    bottom = np.searchsorted(above, above[-1] - above[top])
    return np.append(top, every), np.append(bottom, every)
