"""64-bit offsets agree with Python integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bevel.errors import FixArgumentsError
from bevel.noise_addition.offsets import flat_offsets, plus, shifted, times
from bevel.sharding.shard_generation import Shard

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def pair(value):
    return np.uint32(value >> 32), np.uint32(value % 2**32)


def joined(x):
    return (int(x[0]) << 32) | int(x[1])


@given(U64, U32)
def test_products_and_sums(x, y):
    with np.errstate(over="ignore"):
        assert joined(times(pair(x), y)) == x * y % 2**64
        assert joined(plus(pair(x), np.uint32(y))) == (x + y) % 2**64


@given(U64, st.integers(1, 31))
def test_shifts(x, bits):
    assert joined(shifted(pair(x), bits)) == x >> bits


@pytest.mark.parametrize(
    "whole, shape, starts",
    [
        ((4, 6), (4, 6), (0, 0)),
        ((4, 6), (2, 3), (2, 3)),
        ((5,), (5,), (0,)),
        ((), (), ()),
        ((2**20, 2**20), (2, 3), (2**20 - 2, 2**20 - 3)),
        ((2**16 + 1, 3, 2**31), (2, 1, 4), (2**16 - 1, 2, 2**31 - 4)),
        ((2**32 - 1, 7), (3, 7), (2**32 - 4, 0)),
        ((2**16, 2**16), (2, 2), (2**16 - 2, 2**16 - 2)),
    ],
)
def test_offsets_are_those_of_the_global_array(whole, shape, starts):
    shard = Shard(shape, whole, tuple(np.uint32(s) for s in starts))
    high, low = (np.asarray(x).astype(object) for x in flat_offsets(shard))
    expected = np.zeros(shape, object)
    for index in np.ndindex(*shape):
        offset = 0
        for size, start, i in zip(whole, starts, index, strict=True):
            offset = offset * size + start + i
        expected[index] = offset
    np.testing.assert_array_equal(high * 2**32 + low, expected)


@pytest.mark.parametrize("whole", [(2**32,), (3, 2**33)])
def test_positions_that_would_wrap_are_refused(whole):
    shard = Shard((1,) * len(whole), whole, (np.uint32(0),) * len(whole))
    with pytest.raises(FixArgumentsError, match=r"2\*\*32 elements or more along one dimension"):
        flat_offsets(shard)


def test_leading_dimensions_alone():
    shard = Shard((2, 3), (4, 6), (np.uint32(2), np.uint32(3)))
    np.testing.assert_array_equal(flat_offsets(shard, 1)[1], [15, 21])
    np.testing.assert_array_equal(flat_offsets(shard, 0)[1], 15)
