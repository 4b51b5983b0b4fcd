"""Keyed permutations: bijections that look random, in any part and for any size."""

import itertools

import numpy as np
import pytest
from frequencies import assert_follows, uniform

from bevel.batch_selection import permutation
from bevel.batch_selection.permutation import (
    LARGEST_SIZE,
    SORTED_SIZE,
    KeyedPermutation,
    rounds,
)
from bevel.batch_selection.randomness import SamplingPurpose, derived_key
from bevel.batch_selection.siphash import siphash
from bevel.errors import FixArgumentsError

SMALL = [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 31, 63, 64, 65, 100, 255, 257]
MIDDLE = [SORTED_SIZE, SORTED_SIZE + 1, 5000, 10_007, 2**16 - 1, 2**16, 2**16 + 1, 10**6]
# Squares, one more and one less, so that the bases are odd and even, equal and unequal.
BASES = [4159, 4160, 4161, 4224, 4225, 4226, 4355, 4356, 4357, 8191, 8192, 8193]


def made(size, seed=0):
    return KeyedPermutation(size, derived_key(seed, SamplingPurpose.MEMBERS))


@pytest.fixture
def feistel_only(monkeypatch):
    """Uses the network for small sizes too."""
    monkeypatch.setattr(permutation, "SORTED_SIZE", 0)


@pytest.mark.parametrize("size", [*SMALL, *MIDDLE, *BASES])
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


@pytest.mark.parametrize("size", [4097, 10**6, 10**8])
def test_hashes_from_a_table_are_those_of_the_digits(monkeypatch, size):
    expected = made(size)(np.arange(3000))
    monkeypatch.setattr(permutation, "_SMALL_BASE", 0)
    parts = [made(size)(np.array([k])) for k in range(0, 3000, 100)]
    assert np.array_equal(np.concatenate(parts), expected[::100])


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


def test_there_are_as_many_odd_permutations_as_even_ones():
    # With two odd bases, a network is a product of cycles of odd length, and always even.
    signs = [_sign(made(65 * 65, seed)(np.arange(65 * 65)).tolist()) for seed in range(80)]
    assert_follows(signs, uniform([1, -1]))


def _sign(order):
    seen, sign = [False] * len(order), 1
    for start in range(len(order)):
        at, length = start, 0
        while not seen[at]:
            seen[at], at, length = True, order[at], length + 1
        sign *= -1 if length and length % 2 == 0 else 1
    return sign


def _equal_differences(base, keys):
    """How often two elements differ by as much in the first digit as their positions do.

    The second digits of the positions are equal. This is what the best known attack counts.
    """
    first, second = np.divmod(np.arange(base * base), base)
    equal = []
    for seed in range(keys):
        digit = made(base * base, seed)(first * base + second).reshape(base, base) // base
        for shift in range(1, base // 2):
            equal.append(np.mean((np.roll(digit, -shift, axis=0) - digit) % base == shift))
    return float(np.mean(equal))


@pytest.mark.parametrize("few", [4, 6])
def test_the_best_known_attack_gains_what_is_stated(feistel_only, monkeypatch, few):
    base = 8
    monkeypatch.setattr(permutation, "rounds", lambda smaller_base: few)
    gained = _equal_differences(base, 150) - 1 / base
    assert gained == pytest.approx(base ** (1 - few / 2), rel=0.35)


def test_the_best_known_attack_gains_nothing(feistel_only):
    assert abs(_equal_differences(8, 150) - 1 / 8) < 0.005


@pytest.mark.parametrize("size", [4097, 5 * 10**4, 10**6, 10**8, 10**12, LARGEST_SIZE])
def test_the_best_known_attack_on_a_whole_order_gains_at_most_the_limit(size):
    base = made(size)._bases[1]
    # Pairs of positions, times the square of the gain from each, relative to its probability.
    gain = np.sqrt(size * base / 2 * base * float(base) ** (2 - rounds(base)))
    assert gain <= 1e-12 and rounds(base) >= 10
    assert size <= made(size)._bases[0] * base < size + 2 * made(size)._bases[0]


def test_no_two_rounds_share_a_hash(monkeypatch):
    words = []

    def recorded(hashed, key):
        words.append(hashed)
        return siphash(hashed, key)

    monkeypatch.setattr(permutation, "siphash", recorded)
    made(5000)(np.arange(10))
    (table,) = words
    assert table.shape == (20, 72) and len(np.unique(table)) == table.size
    words.clear()
    made(10**12)(np.arange(100))
    read = [set(hashed.tolist()) for hashed in words]
    assert len(read) >= 10 and not set.intersection(*read)
    assert len(set.union(*read)) == sum(map(len, read))


def test_a_key_changes_everything():
    one, other = (made(10**12, seed)(np.arange(1000)) for seed in (0, 1))
    assert not np.intersect1d(one, other).size
    assert "key" not in repr(made(10))


def test_more_than_can_be_counted_is_an_error():
    with pytest.raises(FixArgumentsError, match=r"count up to 2\*\*53"):
        made(LARGEST_SIZE + 1)
