"""Draws are uniform, and functions of the seed and the purpose."""

import numpy as np
import scipy.stats

from bevel.tuning.draws import uniform


def test_draws_are_uniform_and_different_for_every_purpose_and_seed():
    drawn = [uniform(seed, str(k)) for seed in (0, 2**128 - 1) for k in range(2000)]
    assert len(set(drawn)) == len(drawn) and min(drawn) > 0 and max(drawn) <= 1
    assert scipy.stats.kstest(drawn, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:2000], drawn[2000:])[0, 1]) < 0.1


def test_the_same_seed_and_purpose_give_the_same_number():
    assert uniform(5, "a") == uniform(5, "a") != uniform(5, "b") != uniform(6, "b")


def test_draws_near_0_are_as_fine_as_floating_point():
    """The least likely numbers of trials, without which the price would not hold, can be drawn."""
    drawn = np.array([uniform(7, str(k)) for k in range(100)])
    small = drawn[drawn < 0.25]
    assert len(small) > 10 and (small * 2.0**54 % 1 != 0).any()
