"""Fixed-size batches: all subsets, or all sequences, are equally likely at every step."""

import itertools

import numpy as np
import pytest
from frequencies import assert_follows, uniform

from bevel.batch_selection import FixedBatchSampling
from bevel.errors import FixArgumentsError


def test_without_replacement_all_subsets_are_equally_likely():
    sampler = FixedBatchSampling(2, 2000)
    drawn = [tuple(b.tolist()) for b in sampler.batch_iterator(5, 3)]
    assert_follows(drawn, uniform(itertools.permutations(range(5), 2)))  # in any order


def test_with_replacement_all_sequences_are_equally_likely():
    sampler = FixedBatchSampling(2, 2000, replace=True)
    drawn = [tuple(b.tolist()) for b in sampler.batch_iterator(4, 3)]
    assert_follows(drawn, uniform(itertools.product(range(4), repeat=2)))


def test_steps_are_independent():
    sampler = FixedBatchSampling(1, 4000)
    drawn = [int(b[0]) for b in sampler.batch_iterator(4, 9)]
    pairs = zip(drawn[0::2], drawn[1::2], strict=True)
    assert_follows(pairs, uniform(itertools.product(range(4), repeat=2)))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("num_examples", [5000, 10**12])
def test_shares_of_large_batches(replace, num_examples):
    size = 2148
    sampler = FixedBatchSampling(size, 2, replace)
    whole = sampler.batch(1, num_examples, 7)
    assert (len(whole) == size and len(np.unique(whole)) == size) or replace
    for processes in (3, 8):
        shares = [
            sampler.batch(1, num_examples, 7, process_index=i, process_count=processes)
            for i in range(processes)
        ]
        assert np.array_equal(np.concatenate(shares), whole)


def test_a_batch_can_hold_the_whole_data_set():
    assert sorted(FixedBatchSampling(6, 1).batch(0, 6, 0).tolist()) == list(range(6))


@pytest.mark.parametrize("size, replace", [(7, False), (0, True)])
def test_too_few_examples(size, replace):
    sampler = FixedBatchSampling(8, 1, replace)
    with pytest.raises(FixArgumentsError, match="there are only"):
        sampler.batch(0, size, 0)


def test_wrong_options():
    for options in [(0, 3), (3, 0)]:
        with pytest.raises(FixArgumentsError, match=r"batch_size|iterations"):
            FixedBatchSampling(*options)
