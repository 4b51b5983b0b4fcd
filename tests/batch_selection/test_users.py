"""Users: the base sampler selects the users, and each row holds different examples of one."""

import itertools
import math
import time

import numpy as np
import pytest
from frequencies import assert_follows, uniform
from samplers import ITERATIONS, SAMPLERS

from bevel.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    ExamplesByUser,
    FixedBatchSampling,
    UserSelectionStrategy,
)
from bevel.batch_selection.siphash import siphash
from bevel.batch_selection.users import random_orders
from bevel.errors import FixArgumentsError

IDS = np.array([30, 10, 20, 10, 10, 30, 10, 20, 10])  # 10 has five, 20 and 30 have two
EVERYBODY = CyclicPoissonSampling(1.0, 1)


def row_of(user, batch):
    (row,) = batch[IDS[batch[:, 0]] == user].tolist()
    return tuple(row)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_a_row_holds_different_examples_of_one_user(count, shuffle):
    sampler = UserSelectionStrategy(CyclicPoissonSampling(0.7, 40), count, shuffle)
    for batch in sampler.batch_iterator(IDS, 3):
        assert batch.ndim == 2 and batch.shape[1] == count and batch.dtype == np.int64
        users = []
        for row in batch:
            real = row[row >= 0]
            assert len(set(real.tolist())) == len(real)
            assert (row[len(real) :] == -1).all()
            (user,) = set(IDS[real].tolist())
            assert len(real) == min(count, np.equal(IDS, user).sum())
            users.append(user)
        assert len(set(users)) == len(users)


@pytest.mark.parametrize("name", ["poisson", "cyclic_independent", "balls_in_bins", "min_sep"])
def test_the_users_are_those_of_the_base_sampler(name):
    base = SAMPLERS[name]
    sampler = UserSelectionStrategy(base)
    rows = list(sampler.batch_iterator(IDS, 5))
    expected = list(base.batch_iterator(3, 5))
    assert sampler.iterations == ITERATIONS == len(rows)
    ids = np.array([10, 20, 30])
    for batch, users in zip(rows, expected, strict=True):
        assert IDS[batch[:, 0]].tolist() == ids[users].tolist()


def test_shuffled_rows_are_random_sequences():
    sampler = UserSelectionStrategy(EVERYBODY, 2, shuffle_per_user=True)
    drawn = [row_of(10, next(sampler.batch_iterator(IDS, seed))) for seed in range(500)]
    assert_follows(drawn, uniform(itertools.permutations([1, 3, 4, 6, 8], 2)))


@pytest.mark.parametrize("cycle", [1, 4])
def test_rows_in_order_follow_the_data_set_round_by_round(cycle):
    base = BallsInBinsSampling(6 * cycle, cycle)
    sampler = UserSelectionStrategy(base, 2)
    rows = np.concatenate([batch for batch in sampler.batch_iterator(IDS, 7)])
    rows = rows[IDS[rows[:, 0]] == 10]
    assert rows.tolist() == [[1, 3], [4, 6], [8, 1], [3, 4], [6, 8], [1, 3]]


def test_each_step_redraws_the_examples_of_a_user():
    sampler = UserSelectionStrategy(CyclicPoissonSampling(1.0, 1000), 1, shuffle_per_user=True)
    first = [row_of(10, batch)[0] for batch in sampler.batch_iterator(IDS, 2)]
    pairs = zip(first[0::2], first[1::2], strict=True)
    assert_follows(pairs, uniform(itertools.product([1, 3, 4, 6, 8], repeat=2)))


def test_random_access_and_shares():
    sampler = UserSelectionStrategy(CyclicPoissonSampling(0.5, 20), 2, True)
    ids = np.random.default_rng(0).integers(40, size=200)
    expected = list(sampler.batch_iterator(ids, 4))
    users = ExamplesByUser.of(ids)
    for step in (13, 2):
        assert np.array_equal(sampler.batch(step, users, 4), expected[step])
        shares = [sampler.batch(step, ids, 4, process_index=i, process_count=3) for i in range(3)]
        assert np.array_equal(np.concatenate(shares), expected[step])


def test_users_of_a_large_data_set_are_selected_in_a_microsecond_a_row():
    rng = np.random.default_rng(1)
    users = ExamplesByUser.from_offsets(np.append(0, np.cumsum(rng.integers(0, 300, 10**6))))
    sampler = UserSelectionStrategy(CyclicPoissonSampling(0.05, 20), 2, True)
    sampler.batch(0, users, 4)
    started = time.process_time()
    batch = sampler.batch(1, users, 4)
    seconds = time.process_time() - started
    assert 49_000 < len(batch) < 51_000
    assert seconds / len(batch) < 5e-6  # about 0.3 microseconds on an idle machine
    some = batch[::1000]
    owners = np.searchsorted(users.bounds, some, side="right") - 1
    assert np.array_equal(owners[:, 0][some[:, 1] >= 0], owners[:, 1][some[:, 1] >= 0])


def test_a_user_without_examples_contributes_none():
    users = ExamplesByUser.from_offsets(np.array([0, 0, 3, 3]))
    for shuffle in (False, True):
        rows = UserSelectionStrategy(EVERYBODY, 2, shuffle).batch(0, users, 1)
        assert sorted(row.count(-1) for row in rows.tolist()) == [0, 2, 2]
        assert set(rows.ravel().tolist()) <= {-1, 0, 1, 2}


@pytest.mark.parametrize("size, count", [(2, 2), (4, 2), (4, 3), (3, 3)])
def test_first_elements_of_random_orders(size, count):
    columns = 30 * math.perm(size, count)
    hashes = siphash(np.arange(count * columns).reshape(count, columns), bytes(16))
    drawn = random_orders(hashes, np.full(columns, size))
    law = uniform(itertools.permutations(range(size), count))
    assert_follows(map(tuple, drawn.T.tolist()), law)


def test_the_event_is_that_of_the_base_sampler_over_users():
    base = FixedBatchSampling(4, 6)
    sampler = UserSelectionStrategy(base, 3)
    assert sampler.proven_event(10) == base.proven_event(10)
    assert sampler.participation() == base.participation()
    assert sampler.selection_relations() == base.selection_relations()
    separate = UserSelectionStrategy(BMinSepSampling(0.1, 6, 3))
    assert separate.unamplified_event() == separate.base_strategy.unamplified_event()


def test_wrong_input():
    with pytest.raises(FixArgumentsError, match="examples_per_user_per_batch"):
        UserSelectionStrategy(EVERYBODY, 0)
    with pytest.raises(FixArgumentsError, match="one id per example"):
        UserSelectionStrategy(EVERYBODY).batch_iterator(np.zeros((3, 2)), 0)
