"""Groups that are drawn once: a partition of the examples, the same at every call."""

import numpy as np
import pytest

from bevel.batch_selection.groups import equal_groups, grouped, independent_groups, index_dtype
from bevel.errors import FixArgumentsError


@pytest.mark.parametrize("count", [1, 3, 40, 2**15, 2**17])
def test_groups_from_labels(count):
    labels = np.random.default_rng(0).integers(count, size=500)
    groups = grouped(labels, count)
    for g in {0, count - 1, *labels[:20].tolist()}:
        assert groups.of(g).tolist() == np.flatnonzero(labels == g).tolist()


@pytest.mark.parametrize("make", [independent_groups, equal_groups])
@pytest.mark.parametrize("size, count", [(0, 3), (1, 1), (10, 3), (9, 3), (1000, 7)])
def test_no_example_is_in_two_groups(make, size, count):
    groups = make(size, count, 4)
    members = np.concatenate([groups.of(g) for g in range(count)])
    assert len(np.unique(members)) == len(members)
    used = size // count * count if make is equal_groups else size
    assert len(members) == used
    if make is equal_groups:
        assert {len(groups.of(g)) for g in range(count)} == {size // count}


def test_an_equal_split_into_more_groups_than_examples_is_an_error():
    with pytest.raises(FixArgumentsError, match="cycle_length=4 with 3 examples"):
        equal_groups(3, 4, 0)
    assert len(independent_groups(3, 4, 0).members) == 3


def test_indices_use_the_smallest_dtype():
    assert index_dtype(2**31 - 1) == np.int32 and index_dtype(2**31) == np.int64
    assert equal_groups(100, 5, 0).members.dtype == np.int32
