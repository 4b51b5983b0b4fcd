"""Users: the base sampler's law over users, and different examples of each."""

import itertools

import numpy as np
import pytest
from frequencies import assert_follows, uniform
from samplers import ITERATIONS, SAMPLERS

from bevel.batch_selection import (
    BMinSepSampling,
    CyclicPoissonSampling,
    ExamplesByUser,
    FixedBatchSampling,
    UserSelectionStrategy,
)
from bevel.errors import FixArgumentsError

IDS = np.array([30, 10, 20, 10, 10, 30, 10, 20, 10])  # 10 has five, 20 and 30 have two
EVERYBODY = CyclicPoissonSampling(1.0, 1)


def test_examples_by_user():
    users = ExamplesByUser.of(IDS)
    assert len(users) == 3 and users.user_ids.tolist() == [10, 20, 30]
    assert [users.examples.of(u).tolist() for u in range(3)] == [[1, 3, 4, 6, 8], [2, 7], [0, 5]]
    assert ExamplesByUser.of(users) is users
    assert len(ExamplesByUser.of(np.array([], int))) == 0


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("wanted", [1, 2, 3, 5, 6])
def test_a_row_holds_different_examples_of_one_user(wanted, shuffle):
    strategy = UserSelectionStrategy(CyclicPoissonSampling(0.7, 40), wanted, shuffle)
    for batch in strategy.batch_iterator(IDS, 3):
        assert batch.ndim == 2 and batch.shape[1] == wanted and batch.dtype == np.int64
        users = []
        for row in batch:
            real = row[row >= 0]
            assert len(set(real.tolist())) == len(real)
            assert (row[len(real) :] == -1).all()
            (user,) = set(IDS[real].tolist())
            assert len(real) == min(wanted, np.equal(IDS, user).sum())
            users.append(user)
        assert len(set(users)) == len(users)


@pytest.mark.parametrize("name", ["poisson", "cyclic_independent", "balls_in_bins", "min_sep"])
def test_the_users_are_those_of_the_base_sampler(name):
    base = SAMPLERS[name]
    strategy = UserSelectionStrategy(base)
    rows = list(strategy.batch_iterator(IDS, 5))
    expected = list(base.batch_iterator(3, 5))
    assert strategy.iterations == ITERATIONS == len(rows)
    names = np.array([10, 20, 30])
    for batch, users in zip(rows, expected, strict=True):
        assert IDS[batch[:, 0]].tolist() == names[users].tolist()


def test_shuffled_rows_are_random_sequences():
    strategy = UserSelectionStrategy(EVERYBODY, 2, shuffle_per_user=True)
    drawn = [tuple(next(strategy.batch_iterator(IDS, seed))[0].tolist()) for seed in range(500)]
    assert_follows(drawn, uniform(itertools.permutations([1, 3, 4, 6, 8], 2)))


def test_rows_in_order_begin_anywhere():
    strategy = UserSelectionStrategy(EVERYBODY, 2)
    drawn = [tuple(next(strategy.batch_iterator(IDS, seed))[0].tolist()) for seed in range(500)]
    assert_follows(drawn, uniform([(1, 3), (3, 4), (4, 6), (6, 8), (8, 1)]))


def test_steps_draw_afresh_from_the_examples_of_a_user():
    strategy = UserSelectionStrategy(CyclicPoissonSampling(1.0, 1000), 1)
    first = [int(b[0, 0]) for b in strategy.batch_iterator(IDS, 2)]
    pairs = zip(first[0::2], first[1::2], strict=True)
    assert_follows(pairs, uniform(itertools.product([1, 3, 4, 6, 8], repeat=2)))


def test_random_access_and_shares():
    strategy = UserSelectionStrategy(CyclicPoissonSampling(0.5, 20), 2, True)
    ids = np.random.default_rng(0).integers(40, size=200)
    whole = list(strategy.batch_iterator(ids, 4))
    users = ExamplesByUser.of(ids)
    for step in (13, 2):
        assert np.array_equal(strategy.batch(step, users, 4), whole[step])
        shares = [strategy.batch(step, ids, 4, process_index=i, process_count=3) for i in range(3)]
        assert np.array_equal(np.concatenate(shares), whole[step])


def test_the_event_is_that_of_the_base_sampler_over_users():
    base = FixedBatchSampling(4, 6)
    strategy = UserSelectionStrategy(base, 3)
    assert strategy.proven_event(10) == base.proven_event(10)
    assert strategy.participation() == base.participation()
    assert strategy.selection_relations() == base.selection_relations()
    separate = UserSelectionStrategy(BMinSepSampling(0.1, 6, 3))
    assert separate.unamplified_event() == separate.base_strategy.unamplified_event()


def test_wrong_input():
    with pytest.raises(FixArgumentsError, match="examples_per_user_per_batch"):
        UserSelectionStrategy(EVERYBODY, 0)
    with pytest.raises(FixArgumentsError, match="one id per example"):
        UserSelectionStrategy(EVERYBODY).batch_iterator(np.zeros((3, 2)), 0)
