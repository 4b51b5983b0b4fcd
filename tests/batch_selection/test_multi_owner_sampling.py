"""Batches of a multi-owner graph: separation, participations, coverage and state."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bevel.batch_selection import MultiOwnerGraph, MultiOwnerMinSepSampling
from bevel.errors import FixArgumentsError

LISTS = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), min_size=1, max_size=12)


@given(
    LISTS, st.integers(1, 4), st.integers(1, 4), st.sampled_from([None, 1, 2]), st.integers(0, 9)
)
def test_uses_of_an_owner_are_separated_and_limited(lists, batch_size, min_sep, limit, seed):
    graph = MultiOwnerGraph.from_lists(lists)
    sampler = MultiOwnerMinSepSampling(batch_size, 9, min_sep, limit)
    participation = sampler.participation()
    steps = {}
    for step, batch in enumerate(sampler.batch_iterator(graph, seed)):
        assert len(batch) <= batch_size
        owners = np.concatenate([np.empty(0, int), *[graph.owners_of(i) for i in batch]]).tolist()
        assert len(set(owners)) == len(owners)  # at most one example per batch
        for owner in owners:
            steps.setdefault(owner, []).append(step)
    for used in steps.values():
        assert len(used) <= participation.max_participations <= (limit or 9)
        assert all(b - a >= min_sep for a, b in itertools.pairwise(used))


def test_a_batch_is_as_full_as_it_can_be():
    graph = MultiOwnerGraph.from_lists([[i] for i in range(10)])
    sizes = [len(b) for b in MultiOwnerMinSepSampling(4, 6, 2).batch_iterator(graph, 0)]
    assert sizes == [4] * 6
    sizes = [len(b) for b in MultiOwnerMinSepSampling(8, 6, 2).batch_iterator(graph, 0)]
    assert sizes == [8, 2] * 3
    sizes = [len(b) for b in MultiOwnerMinSepSampling(8, 4, 1, 1).batch_iterator(graph, 0)]
    assert sizes == [8, 2, 0, 0]


def test_a_step_in_which_nothing_can_be_selected_visits_few_examples(monkeypatch):
    graph = MultiOwnerGraph.from_lists([[i % 100, 100 + i % 7] for i in range(20_000)])
    sampler = MultiOwnerMinSepSampling(50, 9, 3)
    state = sampler.initial_state(graph)
    visited = []
    real = MultiOwnerGraph.all_owners
    monkeypatch.setattr(
        MultiOwnerGraph,
        "all_owners",
        lambda self, condition, examples: (
            visited.append(examples) or real(self, condition, examples)
        ),
    )
    for expected in (7, 0, 0, 7, 0, 0, 7):
        visited.clear()
        batch, state = sampler.next_batch(state, graph, 3)
        assert len(batch) == expected
        assert sum(map(len, visited)) <= 4096 + 20_000 * (expected > 0)


def test_no_example_starves_behind_another_of_its_owner():
    graph = MultiOwnerGraph.from_lists([[0], [0], [0], [1], [2]])
    sampler = MultiOwnerMinSepSampling(2, 300, 2)
    uses = np.bincount(
        np.concatenate(list(sampler.batch_iterator(graph, 1))), minlength=graph.num_examples
    )
    assert uses.min() > 25


def test_a_saved_state_resumes_the_run():
    graph = MultiOwnerGraph.from_lists([[i % 5, 10 + i % 3] for i in range(20)])
    sampler = MultiOwnerMinSepSampling(3, 10, 2)
    expected = list(sampler.batch_iterator(graph, 8))
    state = sampler.initial_state(graph)
    for step in range(10):
        before = [np.array(v) for v in vars(state).values()]
        batch, after = sampler.next_batch(state, graph, 8)
        assert np.array_equal(batch, expected[step])
        assert all(map(np.array_equal, before, vars(state).values()))  # the old state is unchanged
        state = type(state)(**{k: np.array(v)[()] for k, v in vars(after).items()})
        state = after if step % 2 else state
    with pytest.raises(FixArgumentsError, match="accounted for"):
        sampler.next_batch(state, graph, 8)


@pytest.mark.parametrize("options", [(0, 3), (3, 0), (3, 3, 0), (3, 3, 1, 0)])
def test_wrong_options(options):
    with pytest.raises(FixArgumentsError, match="an integer"):
        MultiOwnerMinSepSampling(*options)
