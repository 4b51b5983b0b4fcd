"""Streams: one per seed, purpose and index, all independent."""

import itertools

import numpy as np
import pytest
import scipy.stats

from bevel.batch_selection.randomness import (
    SamplingPurpose,
    derived_key,
    fixed_seed,
    seed_of,
    stream,
    uniforms,
)
from bevel.errors import FixArgumentsError

INDICES = [(), (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2**32,), (1, 2**32), (2**32 + 1,)]
SEEDS = [0, 1, 2, 2**32, 2**32 + 1, 2**64, 2**127, 2**128 - 1]


KEYS = list(itertools.product(SEEDS, SamplingPurpose, INDICES))


def test_keys_streams_and_numbers_are_functions_of_seed_purpose_and_index():
    for seed, purpose, index in KEYS[::7]:
        assert derived_key(seed, purpose, *index) == derived_key(seed, purpose, *index)
        draws = [stream(seed, purpose, *index).integers(2**62) for _ in range(2)]
        assert draws[0] == draws[1]
        assert next(uniforms(seed, purpose, *index)) == next(uniforms(seed, purpose, *index))


def test_no_two_keys_are_the_same():
    # Fails if the seed, the purpose and the index are not kept apart in what is hashed.
    keys = {derived_key(seed, purpose, *index) for seed, purpose, index in KEYS}
    assert len(keys) == len(KEYS) and {len(key) for key in keys} == {16}
    numbers = {next(uniforms(seed, purpose, *index)) for seed, purpose, index in KEYS}
    assert len(numbers) == len(KEYS)


@pytest.mark.parametrize(
    "neighbour", [lambda s, t: (s + 1, t), lambda s, t: (s, t + 1), lambda s, t: (s + 1, t - 1)]
)
def test_neighbouring_numbers_are_not_correlated(neighbour):
    # `seed + step` would make (seed + 1, step - 1) the same numbers.
    here, there = [], []
    for seed, step in itertools.product(range(20), range(1, 21)):
        here.append(list(itertools.islice(uniforms(seed, SamplingPurpose.SIZE, step), 5)))
        other = uniforms(neighbour(seed, step)[0], SamplingPurpose.SIZE, neighbour(seed, step)[1])
        there.append(list(itertools.islice(other, 5)))
    correlation = scipy.stats.pearsonr(np.ravel(here), np.ravel(there))
    assert correlation.pvalue > 1e-3


def test_numbers_are_uniform_between_0_and_1():
    drawn = np.array(list(itertools.islice(uniforms(1, SamplingPurpose.SIZE), 5000)))
    assert drawn.min() > 0 and drawn.max() < 1 and len(np.unique(drawn)) == 5000
    assert scipy.stats.kstest(drawn, "uniform").pvalue > 1e-3


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
