"""Balls-in-bins sampling: each example once per cycle, always at the same step of the cycle."""

import itertools

import pytest
from frequencies import assert_follows

from bevel.batch_selection import BallsInBinsSampling
from bevel.errors import FixArgumentsError


def drawn(sampler, num_examples, seed):
    return tuple(tuple(sorted(b.tolist())) for b in sampler.batch_iterator(num_examples, seed))


def test_bins_are_uniform_and_independent():
    sampler = BallsInBinsSampling(3, 3)
    law = {}
    for bins in itertools.product(range(3), repeat=3):
        law[tuple(tuple(i for i in range(3) if bins[i] == b) for b in range(3))] = 1 / 27
    assert_follows([drawn(sampler, 3, seed) for seed in range(600)], law)


@pytest.mark.parametrize("iterations, cycle", [(10, 5), (12, 5), (3, 5), (4, 1)])
def test_every_cycle_has_every_example_once(iterations, cycle):
    for seed in range(20):
        batches = drawn(BallsInBinsSampling(iterations, cycle), 8, seed)
        assert all(batches[t] == batches[t - cycle] for t in range(cycle, iterations))
        used = sorted(i for batch in batches[:cycle] for i in batch)
        assert used == list(range(8)) if iterations >= cycle else len(set(used)) == len(used)


def test_a_cycle_longer_than_the_data_set():
    batches = drawn(BallsInBinsSampling(50, 50), 2, 0)
    assert sorted(i for batch in batches for i in batch) == [0, 1]


@pytest.mark.parametrize("options", [(0, 5), (5, 0), (5, 1.5)])
def test_wrong_options(options):
    with pytest.raises(FixArgumentsError, match="an integer"):
        BallsInBinsSampling(*options)
