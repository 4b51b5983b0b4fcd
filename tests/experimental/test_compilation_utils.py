"""Padded sizes, compared with all other choices of sizes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bevel.errors import FixArgumentsError
from bevel.experimental.compilation_utils import optimal_physical_batch_sizes


def waste(batch_sizes, chosen):
    return sum(min(c for c in chosen if c >= n) - n for n in batch_sizes)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(1, 4))
def test_no_other_sizes_waste_less(batch_sizes, count):
    sizes = optimal_physical_batch_sizes(batch_sizes, count)
    distinct = sorted(set(batch_sizes))
    assert len(sizes) <= count and max(batch_sizes) in sizes
    best = min(
        waste(batch_sizes, chosen)
        for chosen in itertools.combinations(distinct, min(count, len(distinct)))
        if max(chosen) == max(batch_sizes)
    )
    assert waste(batch_sizes, sizes) == best


def test_sizes_come_in_any_form():
    assert optimal_physical_batch_sizes(np.array([3, 3, 9]), 2) == {3, 9}


@pytest.mark.parametrize("arguments", [([], 2), ([3], 0), ([-1], 1), ([2.5], 1)])
def test_bad_input_is_rejected(arguments):
    with pytest.raises(FixArgumentsError):
        optimal_physical_batch_sizes(*arguments)
