"""Random allocation: exactly k steps per example, all sets of steps equally likely."""

import itertools

import numpy as np
import pytest
from frequencies import assert_follows, uniform

from bevel.batch_selection import RandomAllocationSampling
from bevel.batch_selection.random_allocation import random_subsets
from bevel.errors import FixArgumentsError


def steps_of(sampler, num_examples, seed):
    """The steps of each example."""
    batches = [b.tolist() for b in sampler.batch_iterator(num_examples, seed)]
    return [
        tuple(t for t, batch in enumerate(batches) if example in batch)
        for example in range(num_examples)
    ]


def test_sets_of_steps_are_uniform_and_independent_across_examples():
    sampler = RandomAllocationSampling(2, 4)
    law = uniform(itertools.product(itertools.combinations(range(4), 2), repeat=2))
    assert_follows([tuple(steps_of(sampler, 2, seed)) for seed in range(700)], law)


def test_one_step_for_each_example_is_uniform_and_independent_across_examples():
    sampler = RandomAllocationSampling(1, 4)
    law = uniform(itertools.product([(t,) for t in range(4)], repeat=2))
    assert_follows([tuple(steps_of(sampler, 2, seed)) for seed in range(500)], law)


@pytest.mark.parametrize("k, t", [(0, 3), (1, 1), (1, 9), (3, 9), (9, 9), (8, 9)])
def test_every_example_takes_part_exactly_k_times(k, t):
    for steps in steps_of(RandomAllocationSampling(k, t), 30, 1):
        assert len(steps) == k == len(set(steps))


@pytest.mark.parametrize("count, size", [(1, 6), (2, 5), (3, 5), (5, 5), (4, 5)])
def test_subsets_of_every_row(count, size):
    rows = random_subsets(3000, count, size, np.random.default_rng(2))
    law = uniform(itertools.combinations(range(size), count))
    assert_follows([tuple(sorted(row)) for row in rows.tolist()], law)


@pytest.mark.parametrize("options", [(-1, 5), (6, 5), (1, 0)])
def test_wrong_options(options):
    with pytest.raises(FixArgumentsError, match=r"total_participations|iterations"):
        RandomAllocationSampling(*options)
