"""Poisson sampling: the exact distribution over subsets, steps, groups and seeds."""

import itertools
import math

import numpy as np
import pytest
from frequencies import assert_follows, uniform

from bevel.batch_selection import CyclicPoissonSampling, PartitionType
from bevel.errors import FixArgumentsError

INDEPENDENT, EQUAL_SPLIT = PartitionType.INDEPENDENT, PartitionType.EQUAL_SPLIT


def subsets(size):
    return [c for k in range(size + 1) for c in itertools.combinations(range(size), k)]


def poisson_law(size, p):
    return {s: p ** len(s) * (1 - p) ** (size - len(s)) for s in subsets(size)}


def truncated_law(size, p, limit):
    """By definition: sample, then keep a random subset if there are too many."""
    law = dict.fromkeys(subsets(size), 0.0)
    for sampled, chance in poisson_law(size, p).items():
        kept = list(itertools.combinations(sampled, min(limit, len(sampled))))
        for subset in kept:
            law[subset] += chance / len(kept)
    return {s: chance for s, chance in law.items() if chance > 0}


def drawn(sampler, num_examples, seed=5):
    return [tuple(sorted(b.tolist())) for b in sampler.batch_iterator(num_examples, seed)]


@pytest.mark.parametrize("p", [0.2, 0.5, 0.75])
def test_every_subset_has_its_probability(p):
    assert_follows(drawn(CyclicPoissonSampling(p, 3000), 3), poisson_law(3, p))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_truncation_keeps_a_random_subset(limit):
    # A prefix of the sorted sample would give low indices more often.
    sampler = CyclicPoissonSampling(0.5, 3000, truncated_batch_size=limit)
    assert_follows(drawn(sampler, 4), truncated_law(4, 0.5, limit))


def test_truncation_of_large_batches_treats_all_examples_alike():
    sampler = CyclicPoissonSampling(0.5, 40, truncated_batch_size=1500)
    sizes, quarters = [], []
    for batch in sampler.batch_iterator(10_000, 1):
        sizes.append(len(batch))
        quarters += [int(i) // 2500 for i in batch]
    assert set(sizes) == {1500}
    assert_follows(quarters, uniform(range(4)))


def test_batch_sizes_are_binomial():
    sampler = CyclicPoissonSampling(0.25, 2500)
    sizes = [len(b) for b in sampler.batch_iterator(8, 11)]
    law = {k: math.comb(8, k) * 0.25**k * 0.75 ** (8 - k) for k in range(9)}
    rare = sum(law.pop(k) for k in (6, 7, 8))
    assert_follows([min(size, 6) for size in sizes], {**law, 6: rare})


def test_steps_are_independent():
    batches = drawn(CyclicPoissonSampling(0.5, 4000), 2)
    pairs = list(zip(batches[0::2], batches[1::2], strict=True))
    assert_follows(pairs, uniform(itertools.product(subsets(2), repeat=2)))


@pytest.mark.parametrize("shift", [1, 2**32])
def test_adjacent_seeds_are_independent(shift):
    sampler = CyclicPoissonSampling(0.5, 2)
    pairs = [(drawn(sampler, 2, s)[1], drawn(sampler, 2, s + shift)[0]) for s in range(700)]
    assert_follows(pairs, uniform(itertools.product(subsets(2), repeat=2)))


def partition(sampler, num_examples, seed):
    """The groups, made visible by sampling with probability 1."""
    return tuple(drawn(sampler, num_examples, seed))


def test_independent_groups_follow_their_distribution_and_are_sampled_in_turn():
    sampler = CyclicPoissonSampling(1.0, 6, cycle_length=3, partition_type=INDEPENDENT)
    seen = [partition(sampler, 3, seed) for seed in range(600)]
    assert all(groups[:3] == groups[3:] for groups in seen)
    law = {}
    for choice in itertools.product(range(3), repeat=3):
        groups = tuple(tuple(i for i in range(3) if choice[i] == g) for g in range(3))
        law[groups] = 1 / 27
    assert_follows([groups[:3] for groups in seen], law)


def test_equal_groups_have_equal_size_and_drop_a_random_remainder():
    sampler = CyclicPoissonSampling(1.0, 4, cycle_length=2, partition_type=EQUAL_SPLIT)
    seen = [partition(sampler, 5, seed) for seed in range(600)]
    assert all(groups[:2] == groups[2:] for groups in seen)
    law = {
        (first, second): 1 / 30
        for first in itertools.combinations(range(5), 2)
        for second in itertools.combinations(sorted(set(range(5)) - set(first)), 2)
    }
    assert_follows([groups[:2] for groups in seen], law)


@pytest.mark.parametrize("kind", [INDEPENDENT, EQUAL_SPLIT])
def test_within_its_group_an_example_is_sampled_independently(kind):
    sampler = CyclicPoissonSampling(0.5, 3000, cycle_length=2, partition_type=kind)
    groups = partition(
        CyclicPoissonSampling(1.0, 2, cycle_length=2, partition_type=kind), 4, seed=6
    )
    batches = drawn(sampler, 4, seed=6)
    for group, members in enumerate(groups):
        law = {
            tuple(members[i] for i in subset): chance
            for subset, chance in poisson_law(len(members), 0.5).items()
        }
        assert_follows(batches[group::2], law)


def test_the_size_of_a_group_of_a_trillion_examples():
    sampler = CyclicPoissonSampling(1e-6, 9, cycle_length=3, partition_type=INDEPENDENT)
    assert sampler.batch_size_at(4, 10**12, 1) == pytest.approx(1e6 / 3, abs=6 * math.sqrt(1e6 / 3))


def test_the_sampler_of_an_expected_batch_size():
    make = CyclicPoissonSampling.with_expected_batch_size
    assert make(1024, 60_000, 10).sampling_prob == 1024 / 60_000
    assert make(10, 105, 10, cycle_length=10).sampling_prob == 1.0
    assert make(10, 105, 10, cycle_length=10, partition_type=INDEPENDENT).sampling_prob == 10 / 10.5
    sizes = [len(b) for b in make(30, 100, 2000, cycle_length=3).batch_iterator(100, 0)]
    assert np.mean(sizes) == pytest.approx(30, abs=0.2)
    for wrong in (101, -1, math.nan):
        with pytest.raises(FixArgumentsError, match="expected_batch_size"):
            make(wrong, 100, 10)
    with pytest.raises(FixArgumentsError, match="smaller cycle_length"):
        make(11, 105, 10, cycle_length=10)


@pytest.mark.parametrize(
    "options, named",
    [
        ({"sampling_prob": 1.5}, "sampling_prob"),
        ({"sampling_prob": -0.1}, "sampling_prob"),
        ({"iterations": 0}, "iterations"),
        ({"cycle_length": 0}, "cycle_length"),
        ({"truncated_batch_size": 0}, "truncated_batch_size"),
        ({"partition_type": "equal"}, "partition_type"),
    ],
)
def test_wrong_options_are_named(options, named):
    with pytest.raises(FixArgumentsError, match=named):
        CyclicPoissonSampling(**{"sampling_prob": 0.1, "iterations": 3, **options})
