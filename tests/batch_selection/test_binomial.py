"""Binomial counts: exact probabilities, also where floating point is treacherous."""

import math

import numpy as np
import pytest
import scipy.stats
from frequencies import assert_follows

from bevel.batch_selection.binomial import binomial, log_weight
from bevel.batch_selection.randomness import SamplingPurpose, uniforms


def drawn(trials, chance, count):
    numbers = uniforms(3, SamplingPurpose.SIZE)
    return [binomial(trials, chance, numbers) for _ in range(count)]


@pytest.mark.parametrize("trials", [1, 2, 5])
@pytest.mark.parametrize("chance", [0.2, 0.5, 0.7])
def test_small_counts_follow_their_distribution(trials, chance):
    law = {
        k: math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k)
        for k in range(trials + 1)
    }
    assert_follows(drawn(trials, chance, 20_000), law)


@pytest.mark.parametrize(
    "trials, chance",
    [
        *((300, 0.3), (300, 0.34), (1000, 0.5), (10**6, 1e-3), (10**5, 0.97)),
        *((10**12, 3e-12), (10**12, 9e-11), (10**12, 1.1e-10), (10**12, 1e-8)),
    ],
)
def test_counts_follow_the_distribution_of_scipy(trials, chance):
    law = scipy.stats.binom(trials, chance)
    edges = np.unique(law.ppf(np.linspace(0.02, 0.98, 25)))
    inside = np.diff(law.cdf(edges))
    chances = {k + 1: float(c) for k, c in enumerate(inside)}
    chances |= {0: float(law.cdf(edges[0])), len(edges): float(law.sf(edges[-1]))}
    places = np.searchsorted(edges, drawn(trials, chance, 8000))
    assert_follows(places.tolist(), {k: c for k, c in chances.items() if c > 0})


@pytest.mark.parametrize("chance", [0.5, 1 / 3])
def test_counts_of_a_trillion_trials_are_normal_to_all_that_can_be_seen(chance):
    trials = 10**12
    counts = np.array(drawn(trials, chance, 4000))
    scaled = (counts - trials * chance) / math.sqrt(trials * chance * (1 - chance))
    assert scipy.stats.kstest(scaled, "norm").pvalue > 1e-3
    assert len(np.unique(counts % 2**10)) > 900  # no grid of floating-point numbers


@pytest.mark.parametrize(
    "trials, chance", [(10**12, 0.5), (10**12, 1e-9), (10**15, 1e-3), (300, 0.4)]
)
def test_probabilities_have_nine_digits(trials, chance):
    # The exact ratio of two probabilities is a product of ratios of neighbours.
    deviation, mode = math.sqrt(trials * chance * (1 - chance)), int((trials + 1) * chance)
    for distance in (1, int(deviation), int(3 * deviation), -int(2 * deviation)):
        k = np.arange(*sorted((mode, mode + distance)), dtype=np.int64)
        terms = np.log1p((trials * chance - k - 1 + chance) / ((k + 1) * (1 - chance)))
        exact = math.copysign(1, distance) * math.fsum(terms)
        found = log_weight(mode + distance, trials, chance) - log_weight(mode, trials, chance)
        assert found == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("trials, chance", [(10**12, 1e-10), (300, 0.34), (10**12, 1e-6)])
def test_probabilities_of_usual_batch_sizes_have_eleven_digits(trials, chance):
    deviation, mode = math.sqrt(trials * chance * (1 - chance)), int((trials + 1) * chance)
    low = mode - int(8 * deviation)  # few, where Stirling's formula is worst
    k = np.arange(low, mode, dtype=np.int64)
    terms = np.log1p((trials * chance - k - 1 + chance) / ((k + 1) * (1 - chance)))
    found = log_weight(mode, trials, chance) - log_weight(low, trials, chance)
    assert found == pytest.approx(math.fsum(terms), abs=1e-11)


def test_certain_counts():
    for trials in (0, 1, 10**12):
        assert set(drawn(trials, 0.0, 20)) == {0} and set(drawn(trials, 1.0, 20)) == {trials}
    assert set(drawn(0, 0.3, 20)) == {0}
