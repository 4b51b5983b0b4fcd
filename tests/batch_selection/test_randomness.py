"""Streams: one per seed, purpose and index, all independent."""

import itertools

import numpy as np
import pytest
import scipy.stats

from bevel.batch_selection.randomness import SamplingPurpose, fixed_seed, seed_of, stream
from bevel.errors import FixArgumentsError

INDICES = [(), (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2**32,), (1, 2**32), (2**32 + 1,)]
SEEDS = [0, 1, 2, 2**32, 2**32 + 1, 2**64, 2**127, 2**128 - 1]


def test_a_stream_is_a_function_of_seed_purpose_and_index():
    for seed, purpose, index in itertools.product(SEEDS, SamplingPurpose, INDICES):
        draws = [stream(seed, purpose, *index).integers(2**62) for _ in range(2)]
        assert draws[0] == draws[1]


def test_no_two_streams_are_the_same():
    # Fails if words of the seed and of the index overlap in the key.
    keys = list(itertools.product(SEEDS, SamplingPurpose, INDICES))
    first = {int(stream(seed, purpose, *index).integers(2**62)) for seed, purpose, index in keys}
    assert len(first) == len(keys)


@pytest.mark.parametrize(
    "neighbour", [lambda s, t: (s + 1, t), lambda s, t: (s, t + 1), lambda s, t: (s + 1, t - 1)]
)
def test_neighbouring_streams_are_not_correlated(neighbour):
    # `seed + step` would make (seed + 1, step - 1) the same stream.
    here, there = [], []
    for seed, step in itertools.product(range(20), range(1, 21)):
        here.append(stream(seed, SamplingPurpose.SIZE, step).random(5))
        other_seed, other_step = neighbour(seed, step)
        there.append(stream(other_seed, SamplingPurpose.SIZE, other_step).random(5))
    correlation = scipy.stats.pearsonr(np.ravel(here), np.ravel(there))
    assert correlation.pvalue > 1e-3


def test_seeds():
    assert seed_of(7) == 7 == fixed_seed(np.int64(7))
    drawn = {seed_of(None) for _ in range(50)}
    assert len(drawn) == 50 and max(drawn) > 2**120
    generator = np.random.default_rng(1)
    a, b = seed_of(generator), seed_of(generator)
    assert a != b and a == seed_of(np.random.default_rng(1)) and max(a, b) > 2**100


@pytest.mark.parametrize("rng", [-1, 2**128, 1.5, "7", True, np.random.RandomState(0)])
def test_an_invalid_seed_is_rejected(rng):
    with pytest.raises(FixArgumentsError, match="rng="):
        seed_of(rng)
