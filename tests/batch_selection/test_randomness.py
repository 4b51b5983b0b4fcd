"""Streams: one per seed, purpose and place, and no two of them related."""

import itertools

import numpy as np
import pytest
import scipy.stats

from bevel.batch_selection.randomness import SamplingPurpose, fixed_seed, seed_of, stream
from bevel.errors import FixArgumentsError

PLACES = [(), (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2**32,), (1, 2**32), (2**32 + 1,)]
SEEDS = [0, 1, 2, 2**32, 2**32 + 1, 2**64, 2**127, 2**128 - 1]


def test_a_stream_is_a_function_of_seed_purpose_and_place():
    for seed, purpose, place in itertools.product(SEEDS, SamplingPurpose, PLACES):
        draws = [stream(seed, purpose, *place).integers(2**62) for _ in range(2)]
        assert draws[0] == draws[1]


def test_no_two_streams_are_the_same():
    # Words of seeds and places that run into each other would show here.
    keys = list(itertools.product(SEEDS, SamplingPurpose, PLACES))
    first = {int(stream(seed, purpose, *place).integers(2**62)) for seed, purpose, place in keys}
    assert len(first) == len(keys)


@pytest.mark.parametrize(
    "neighbour", [lambda s, t: (s + 1, t), lambda s, t: (s, t + 1), lambda s, t: (s + 1, t - 1)]
)
def test_neighbouring_streams_are_not_correlated(neighbour):
    # `seed + step` would make (seed + 1, step - 1) the same stream.
    here, there = [], []
    for seed, step in itertools.product(range(20), range(1, 21)):
        here.append(stream(seed, SamplingPurpose.SIZE, step).random(5))
        there.append(stream(*_(neighbour(seed, step))).random(5))
    correlation = scipy.stats.pearsonr(np.ravel(here), np.ravel(there))
    assert correlation.pvalue > 1e-3


def _(place):
    return place[0], SamplingPurpose.SIZE, place[1]


def test_seeds():
    assert seed_of(7) == 7 == fixed_seed(np.int64(7))
    drawn = {seed_of(None) for _ in range(50)}
    assert len(drawn) == 50 and max(drawn) > 2**120
    generator = np.random.default_rng(1)
    a, b = seed_of(generator), seed_of(generator)
    assert a != b and a == seed_of(np.random.default_rng(1)) and max(a, b) > 2**100


@pytest.mark.parametrize("rng", [-1, 2**128, 1.5, "7", True, np.random.RandomState(0)])
def test_what_is_no_seed_is_refused(rng):
    with pytest.raises(FixArgumentsError, match="rng="):
        seed_of(rng)
