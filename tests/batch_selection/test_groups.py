"""Random groups: a partition of the examples, the same at every call, for any number of them."""

import itertools

import numpy as np
import pytest
import scipy.stats
from frequencies import assert_follows

from bevel.batch_selection.groups import equal_group, independent_group
from bevel.errors import FixArgumentsError


def members(group):
    return group.members(np.arange(group.size))


@pytest.mark.parametrize("make", [independent_group, equal_group])
@pytest.mark.parametrize("size, count", [(0, 3), (1, 1), (10, 3), (9, 3), (1000, 7), (10_000, 97)])
def test_no_example_is_in_two_groups(make, size, count):
    groups = [make(size, count, g, 4) for g in range(count)]
    everyone = np.concatenate([members(group) for group in groups])
    assert len(np.unique(everyone)) == len(everyone)
    assert len(everyone) == (size // count * count if make is equal_group else size)
    assert [g.start for g in groups[1:]] == [g.start + g.size for g in groups[:-1]]
    if make is equal_group:
        assert {group.size for group in groups} == {size // count}


@pytest.mark.parametrize("size, count", [(2, 3), (3, 2), (2, 5)])
def test_every_assignment_to_independent_groups_is_equally_likely(size, count):
    def assignment(seed):
        groups = [members(independent_group(size, count, g, seed)) for g in range(count)]
        return tuple(
            next(g for g, group in enumerate(groups) if example in group) for example in range(size)
        )

    law = {a: count**-size for a in itertools.product(range(count), repeat=size)}
    assert_follows([assignment(seed) for seed in range(30 * count**size)], law)


def test_sizes_of_independent_groups_of_a_trillion_examples():
    # Each size is binomial; the sizes of the groups next to each other are not correlated much.
    count, size = 1000, 10**12
    sizes = np.array([independent_group(size, count, g, 8).size for g in range(count)])
    assert sizes.sum() == size
    law = scipy.stats.norm(size / count, np.sqrt(size / count * (1 - 1 / count)))
    assert scipy.stats.kstest(sizes, law.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(sizes[:-1], sizes[1:])[0, 1]) < 0.12


def test_an_equal_split_into_more_groups_than_examples_is_an_error():
    with pytest.raises(FixArgumentsError, match="cycle_length=4 with 3 examples"):
        equal_group(3, 4, 0, 0)
    assert sum(independent_group(3, 4, g, 0).size for g in range(4)) == 3
