"""Several owners per example: the graph, and the bound on examples per owner."""

import numpy as np
import pytest
from frequencies import assert_follows
from hypothesis import given
from hypothesis import strategies as st

from bevel.batch_selection import MultiOwnerGraph, greedy_contribution_bound
from bevel.errors import FixArgumentsError

LISTS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), max_size=12)


@given(LISTS)
def test_the_graph_keeps_the_owners_of_each_example(lists):
    graph = MultiOwnerGraph.from_lists(lists)
    assert graph.num_examples == len(lists)
    assert graph.num_owners == len({owner for owners in lists for owner in owners})
    for example, owners in enumerate(lists):
        ids = graph.owner_ids[graph.owners_of(example)]
        assert sorted(ids.tolist()) == sorted(set(owners))


def test_edges_in_any_order_and_repeated():
    graph = MultiOwnerGraph.from_edges([2, 0, 2, 1, 2], [7, 9, 5, 7, 7], 3)
    ids = [graph.owner_ids[graph.owners_of(i)].tolist() for i in range(3)]
    assert ids == [[9], [7], [5, 7]]


@given(LISTS, st.integers(1, 3), st.integers(0, 5))
def test_no_owner_is_above_the_bound_and_nothing_can_be_added(lists, limit, seed):
    graph = MultiOwnerGraph.from_lists(lists)
    selected = greedy_contribution_bound(graph, limit, seed)
    assert selected.dtype == np.int64 and selected.tolist() == sorted(set(selected.tolist()))

    def counts(examples):
        return np.bincount(
            np.concatenate([np.empty(0, int), *[graph.owners_of(i) for i in examples]]),
            minlength=graph.num_owners,
        )

    assert (counts(selected) <= limit).all()
    for other in set(range(graph.num_examples)) - set(selected.tolist()):
        assert (counts([*selected, other]) > limit).any()


def test_examples_are_visited_in_random_order():
    graph = MultiOwnerGraph.from_lists([[0], [0, 1], [1]])
    drawn = [tuple(greedy_contribution_bound(graph, 1, seed).tolist()) for seed in range(300)]
    assert_follows(drawn, {(0, 2): 2 / 3, (1,): 1 / 3})  # (1,) only if example 1 comes first


def test_wrong_input():
    with pytest.raises(FixArgumentsError, match="example 1 has no owner"):
        MultiOwnerGraph.from_lists([[3], [], [4]])
    with pytest.raises(FixArgumentsError, match="example 2 has no owner"):
        MultiOwnerGraph.from_edges([0, 1], [0, 0], 3)
    with pytest.raises(FixArgumentsError, match="pass 0 to 1, or a larger"):
        MultiOwnerGraph.from_edges([0, 2], [0, 0], 2)
    with pytest.raises(FixArgumentsError, match="two 1-D arrays of the same length"):
        MultiOwnerGraph.from_edges([0, 1], [0], 2)
    with pytest.raises(FixArgumentsError, match="max_examples_per_owner"):
        greedy_contribution_bound(MultiOwnerGraph.from_lists([[1]]), 0)
