"""Subsets: all equally likely for any leaf size, and any rows can be drawn separately."""

import itertools

import numpy as np
import pytest
from frequencies import assert_follows, uniform

from bevel.batch_selection import subset
from bevel.batch_selection.randomness import SamplingPurpose, stream
from bevel.batch_selection.subset import LARGEST_RANGE, LEAF, subset_rows
from bevel.errors import FixArgumentsError


def parts(seed):
    return lambda part: stream(seed, SamplingPurpose.MEMBERS, part)


@pytest.mark.parametrize("leaf", [0, 1, 2, 1024])
@pytest.mark.parametrize("size, count", [(5, 2), (6, 3), (4, 4), (7, 1), (3, 0)])
def test_all_subsets_are_equally_likely(monkeypatch, size, count, leaf):
    monkeypatch.setattr(subset, "LEAF", max(leaf, 1))
    drawn = [tuple(subset_rows(size, count, 0, count, parts(s)).tolist()) for s in range(500)]
    assert_follows(drawn, uniform(itertools.combinations(range(size), count)))


@pytest.mark.parametrize("size, count", [(10**9, 5000), (20_000, 5000), (5000, 5000), (3000, 2999)])
def test_any_rows_equal_those_of_the_full_draw(size, count):
    expected = subset_rows(size, count, 0, count, parts(3))
    assert len(np.unique(expected)) == count and np.all(np.diff(expected) > 0)
    assert expected[0] >= 0 and expected[-1] < size
    for start, stop in [(0, 1), (LEAF - 1, LEAF + 1), (count - 1, count), (700, 3100), (5, 5)]:
        stop = min(stop, count)
        assert np.array_equal(subset_rows(size, count, start, stop, parts(3)), expected[start:stop])


def test_large_subsets_fill_the_range_evenly():
    # 50 subsets of 3000 members of range(10**6): a chi-square test over tenths of the range.
    tenths = [
        int(member) // 100_000
        for seed in range(50)
        for member in subset_rows(10**6, 3000, 0, 3000, parts(seed))
    ]
    assert_follows(tenths, uniform(range(10)))


def test_only_the_requested_parts_are_drawn():
    visited = []

    def recorded_stream(part):
        visited.append(part)
        return stream(0, SamplingPurpose.MEMBERS, part)

    rows = subset_rows(10**9, 10**6, 500_000, 500_100, recorded_stream)
    assert len(rows) == 100
    assert len(visited) < 40  # one path down the tree; the full tree has about two thousand nodes


def test_a_range_that_numpy_cannot_draw_from_is_rejected():
    assert len(subset_rows(LARGEST_RANGE, 3000, 0, 3000, parts(0))) == 3000
    with pytest.raises(FixArgumentsError, match="split the data set"):
        subset_rows(LARGEST_RANGE + 1, 3000, 0, 3000, parts(0))
