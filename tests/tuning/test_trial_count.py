"""The number of trials follows the distribution that is accounted, and is never fixed."""

import math

import numpy as np
import pytest
import scipy.stats
from selections import law_of_runs

from bevel.errors import FixArgumentsError
from bevel.tuning import TrialCount

COUNTS = [
    TrialCount(10.0, "logarithmic"),
    TrialCount(3.0, "geometric"),
    TrialCount(4.0, "poisson"),
    TrialCount(6.0, 0.5),
]


@pytest.mark.fast
@pytest.mark.parametrize("count", COUNTS, ids=str)
def test_numbers_follow_the_distribution_that_is_accounted(count):
    law, draws = law_of_runs(count.expected, count.shape), 4000
    drawn = np.array([count.draw(seed) for seed in range(draws)])
    cut = int(np.flatnonzero(law * draws > 5)[-1])
    seen = np.append(np.bincount(drawn, minlength=cut + 1)[: cut + 1], (drawn > cut).sum())
    expected = np.append(law[: cut + 1], 1 - law[: cut + 1].sum()) * draws
    seen, expected = seen[expected > 1], expected[expected > 1]
    assert scipy.stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-3


@pytest.mark.parametrize("count", COUNTS, ids=str)
def test_the_same_seed_gives_the_same_number(count):
    assert [count.draw(seed) for seed in range(50)] == [count.draw(seed) for seed in range(50)]


@pytest.mark.parametrize(
    "name, why",
    [
        ("fixed", "can cost almost as much as releasing all of them"),
        ("constant", "can cost almost as much as releasing all of them"),
        ("truncated", "no price for a number of trials that has a limit"),
        ("uniform", "no price for a number of trials that has a limit"),
    ],
)
def test_a_fixed_or_limited_number_is_refused_with_the_reason(name, why):
    with pytest.raises(FixArgumentsError, match=why):
        TrialCount(10.0, name)


@pytest.mark.parametrize("expected", [1.0001, 1 + 1e-9, 1 + 1e-13, 1 + 1e-15])
@pytest.mark.parametrize("shape", [0.0, 0.3, 1.0, 2.0, 1e6])
def test_means_close_to_one_have_the_same_law(expected, shape):
    """P(K = 1) and P(K = 2) of the definition, to first order in the mean above 1."""
    count = TrialCount(expected, shape)
    _, one = count._least()
    assert one == pytest.approx(1, abs=1e-3)
    if expected > 1 + 1e-10:
        assert one * count._ratio(1) == pytest.approx(expected - 1, rel=1e-3)
    assert count.draw(1) >= 1


@pytest.mark.parametrize("shape", ["geometrical", -1, math.nan, math.inf, None, 1e7])
def test_other_distributions_are_refused(shape):
    with pytest.raises(FixArgumentsError, match="'logarithmic', 'geometric', 'poisson'"):
        TrialCount(10.0, shape)


@pytest.mark.parametrize("expected", [1, 0, -3, math.inf, 1e6, "10", True])
def test_the_mean_is_above_one(expected):
    with pytest.raises(FixArgumentsError, match="pass a number above 1"):
        TrialCount(expected)


def test_the_best_of_a_fixed_number_can_cost_almost_as_much_as_all():
    """Why it is refused: the output that ranks lowest wins only if all trials have it."""
    number, chance = 10, 0.9
    with_it, without = chance**number, (chance / math.e) ** number
    assert math.log(with_it / without) == pytest.approx(number)  # and 1 for one trial


def test_the_distribution_is_said_in_words():
    assert str(COUNTS[1]) == "a geometric number of trials, 3 on average"
    assert str(COUNTS[3]) == "a negative binomial of shape 0.5 number of trials, 6 on average"
