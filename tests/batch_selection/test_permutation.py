"""Keyed permutations: bijections that look random, in any part and for any size."""

import itertools

import numpy as np
import pytest
from frequencies import assert_follows, uniform

from bevel.batch_selection import permutation
from bevel.batch_selection.permutation import LARGEST_SIZE, SORTED_SIZE, KeyedPermutation
from bevel.batch_selection.randomness import SamplingPurpose, derived_key
from bevel.errors import FixArgumentsError

SMALL = [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 31, 63, 64, 65, 100, 255, 257]
MIDDLE = [SORTED_SIZE, SORTED_SIZE + 1, 5000, 10_007, 2**16 - 1, 2**16, 2**16 + 1, 10**6]


def made(size, seed=0):
    return KeyedPermutation(size, derived_key(seed, SamplingPurpose.MEMBERS))


@pytest.fixture
def feistel_only(monkeypatch):
    """Uses the network for small sizes too."""
    monkeypatch.setattr(permutation, "SORTED_SIZE", 0)


@pytest.mark.parametrize("size", [*SMALL, *MIDDLE])
def test_every_element_occurs_once(size):
    assert np.array_equal(np.sort(made(size)(np.arange(size))), np.arange(size))


@pytest.mark.parametrize("size", SMALL)
def test_every_element_occurs_once_in_small_networks(feistel_only, size):
    for seed in range(20):
        assert np.array_equal(np.sort(made(size, seed)(np.arange(size))), np.arange(size))


@pytest.mark.parametrize("size", [10, 5000, 10**6, 10**9 + 7, 10**12, 10**12 + 1, LARGEST_SIZE])
def test_any_positions_equal_those_of_a_larger_part(size):
    # Large parts look hashes up in a table, small ones compute them.
    order, count = made(size), min(size, 3000)
    expected = order(np.arange(count))
    assert expected.dtype == np.int64 and len(np.unique(expected)) == count
    assert expected.min() >= 0 and expected.max() < size
    some = np.random.default_rng(1).integers(count, size=50)
    assert np.array_equal(order(some), expected[some])
    last = order(np.array([size - 1]))
    assert 0 <= last[0] < size and order(np.empty(0, int)).shape == (0,)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_are_equally_likely(size):
    drawn = [tuple(made(size, seed)(np.arange(size)).tolist()) for seed in range(1200)]
    assert_follows(drawn, uniform(itertools.permutations(range(size))))


@pytest.mark.parametrize("size", [10_007, 10**12, LARGEST_SIZE])
def test_the_element_at_a_position_is_uniform_over_keys(size):
    # The probability that an example is in a batch is the sum of these over the rows.
    positions = np.array([0, 1, 9_999])
    drawn = np.array([made(size, seed)(positions) for seed in range(400)])
    for elements in drawn.T:
        assert_follows((elements * 12 // size).tolist(), uniform(range(12)))
        assert_follows((elements % 12).tolist(), uniform(range(12)))


@pytest.mark.parametrize("size", [60_000, 10**12])
def test_pairs_of_elements_are_uniform_over_keys(size):
    drawn = [made(size, seed)(np.array([5, 6])) * 4 // size for seed in range(400)]
    assert_follows([tuple(pair.tolist()) for pair in drawn], uniform(np.ndindex(4, 4)))


@pytest.mark.parametrize("size", [5000, 10**6, 10**12])
def test_the_elements_of_one_key_fill_the_range_evenly(size):
    elements = made(size)(np.arange(min(size, 20_000)))
    if size > 20_000:
        assert_follows((elements * 50 // size).tolist(), uniform(range(50)))
        assert_follows((elements % 64).tolist(), uniform(range(64)))
    steps = np.sign(np.diff(elements))
    assert abs(np.mean(steps[1:] != steps[:-1]) - 2 / 3) < 0.03  # turning points of a random order


def test_small_networks_are_close_to_uniform_too(feistel_only):
    # Exact for no small size, but a missing round or a constant hash would show.
    drawn = [tuple(made(17, seed)(np.array([0, 1])) // 6) for seed in range(500)]
    sizes = [6, 6, 5]
    law = {(a, b): sizes[a] * (sizes[b] - (a == b)) / (17 * 16) for a, b in np.ndindex(3, 3)}
    assert_follows([tuple(int(x) for x in pair) for pair in drawn], law)


def test_a_key_changes_everything():
    one, other = (made(10**12, seed)(np.arange(1000)) for seed in (0, 1))
    assert not np.intersect1d(one, other).size
    assert "key" not in repr(made(10))


def test_more_than_can_be_counted_is_an_error():
    with pytest.raises(FixArgumentsError, match=r"count up to 2\*\*53"):
        made(LARGEST_SIZE + 1)
