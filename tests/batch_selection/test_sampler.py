"""Properties of all samplers: one draw, in any order of steps and on any number of processes."""

import hashlib
import itertools
import time
import tracemalloc

import numpy as np
import pytest
import samplers
from frequencies import assert_follows, uniform
from samplers import ITERATIONS, RANDOM_ACCESS, SAMPLERS, batches, equal, population

from bevel.batch_selection import (
    BallsInBinsSampling,
    BatchSelectionStrategy,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    RandomAllocationSampling,
    UserSelectionStrategy,
    permutation,
)
from bevel.batch_selection.randomness import DRAW_VERSION
from bevel.batch_selection.sampler import share
from bevel.batch_selection.siphash import siphash
from bevel.errors import FixArgumentsError

SEED = 2**100 + 17
WITH_CHANCE = [name for name in SAMPLERS if name not in ("poisson_nothing", "poisson_everything")]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_holds_different_examples_of_the_data_set(name):
    drawn = batches(name, 40, SEED)
    assert len(drawn) == ITERATIONS
    for batch in drawn:
        assert batch.dtype == np.int64 and batch.ndim == 1
        assert all(0 <= i < 40 for i in batch)
        assert len(set(batch.tolist())) == len(batch) or name == "fixed_replaced"


@pytest.mark.parametrize("name", WITH_CHANCE)
def test_the_draw_is_a_function_of_the_seed(name):
    assert equal(batches(name, 40, SEED), batches(name, 40, SEED))
    assert not equal(batches(name, 40, SEED), batches(name, 40, SEED + 1))


@pytest.mark.parametrize("name", SAMPLERS)
def test_random_access_equals_iteration(name):
    sampler, expected = SAMPLERS[name], batches(name, 40, SEED)
    order = np.random.default_rng(0).permutation(ITERATIONS).tolist()
    for step in order:
        assert np.array_equal(sampler.batch(step, population(name, 40), SEED), expected[step])


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", SAMPLERS)
def test_shares_of_processes_are_disjoint_and_make_up_the_batch(name, processes):
    sampler, expected = SAMPLERS[name], batches(name, 40, SEED)
    for step in (0, ITERATIONS - 1):
        shares = [
            sampler.batch(
                step, population(name, 40), SEED, process_index=i, process_count=processes
            )
            for i in range(processes)
        ]
        assert np.array_equal(np.concatenate(shares), expected[step])
        sizes = [len(part) for part in shares]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", RANDOM_ACCESS)
def test_the_size_of_a_batch_is_known_without_its_rows(name):
    for step, batch in enumerate(batches(name, 40, SEED)):
        assert SAMPLERS[name].batch_size_at(step, 40, SEED) == len(batch)


@pytest.mark.parametrize("name", RANDOM_ACCESS)
def test_any_rows_can_be_drawn_alone(name):
    sampler = SAMPLERS[name]
    for num_examples in (40, 30_000):  # a sorted order, and a Feistel network
        batch = sampler.batch(5, num_examples, SEED)
        rows = np.random.default_rng(2).permutation(len(batch))[:7]
        assert np.array_equal(sampler.at_rows(5, num_examples, SEED, rows), batch[rows])
        for row in (-1, len(batch)):
            with pytest.raises(FixArgumentsError, match="do not take part"):
                sampler.at_rows(5, num_examples, SEED, np.array([row]))


# About 1000 of 1e12 examples at each step.
TRILLION = 10**12
HUGE = {
    "poisson": CyclicPoissonSampling(1e-9, 10**6),
    "truncated": CyclicPoissonSampling(1e-9, 10**6, truncated_batch_size=900),
    "cyclic": CyclicPoissonSampling(1e-7, 10**6, cycle_length=100),
    "cyclic_independent": CyclicPoissonSampling(
        1e-7, 10**6, cycle_length=100, partition_type=PartitionType.INDEPENDENT
    ),
    "balls_in_bins": BallsInBinsSampling(10**9, 10**9),
    "random_allocation": RandomAllocationSampling(1, 10**9),
    "fixed": FixedBatchSampling(1000, 10**6),
    "fixed_replaced": FixedBatchSampling(1000, 10**6, replace=True),
    "min_sep": BMinSepSampling(1e-9, 10**6, 5),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_trillion_examples_take_milliseconds_and_little_memory(name):
    sampler = HUGE[name]
    step = 0 if name == "min_sep" else 654_321
    sampler.batch(step, TRILLION, 1)  # warm up
    tracemalloc.start()
    started = time.process_time()
    batch = sampler.batch(step, TRILLION, 1)
    seconds = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 850 < len(batch) < 1150
    assert batch.min() >= 0 and batch.max() < TRILLION
    assert len(np.unique(batch)) == len(batch)
    assert seconds < 0.2  # about 0.002 on an idle machine
    assert peak < 3e6


@pytest.mark.parametrize("name", HUGE)
def test_all_parts_of_a_trillion_examples_are_selected_alike(name):
    sampler = HUGE[name]
    batches = itertools.islice(sampler.batch_iterator(TRILLION, 5), 20)
    drawn = np.concatenate(list(batches))
    assert_follows((drawn * 40 // TRILLION).tolist(), uniform(range(40)))
    assert_follows((drawn % 40).tolist(), uniform(range(40)))


def test_steps_over_a_trillion_examples_are_independent():
    # Two steps share an example with probability 1e-6. With one key for both they share most.
    for name in ("poisson", "fixed", "cyclic", "cyclic_independent"):
        cycle = getattr(HUGE[name], "cycle_length", 1)
        first, second = (HUGE[name].batch(step, TRILLION, 6) for step in (3, 3 + cycle))
        assert not np.intersect1d(first, second).size


def test_the_cost_of_a_share_is_that_of_its_rows(monkeypatch):
    hashed = []

    def counted(words, key):
        hashed.append(np.size(words))
        return siphash(words, key)

    monkeypatch.setattr(permutation, "siphash", counted)
    for name in ("poisson", "cyclic", "cyclic_independent", "fixed", "balls_in_bins"):
        hashed.clear()
        HUGE[name].batch(4, TRILLION, 2)
        whole = sum(hashed)
        hashed.clear()
        HUGE[name].batch(4, TRILLION, 2, process_index=3, process_count=8)
        assert sum(hashed) <= whole / 8 + 100


def test_what_a_seed_draws_changes_only_with_its_version():
    # If this fails, increase DRAW_VERSION: runs must not go on with another draw.
    hashed = hashlib.blake2b(digest_size=16)
    for name in SAMPLERS:
        if name != "random_allocation":  # draws with NumPy's generator
            for batch in batches(name, 40, SEED):
                hashed.update(batch.tobytes() + b"|")
    for name, sampler in HUGE.items():
        hashed.update(f"{name} {next(sampler.batch_iterator(TRILLION, SEED)).tolist()}".encode())
    for size in (5000, 10**6, 10**8):  # small networks have more rounds
        hashed.update(FixedBatchSampling(50, 1).batch(0, size, SEED).tobytes())
    users = UserSelectionStrategy(SAMPLERS["poisson"], 2, shuffle_per_user=True)
    hashed.update(users.batch(3, np.arange(100) % 7, SEED).tobytes())
    assert (DRAW_VERSION, hashed.hexdigest()) == (3, "396b4d37b97fa432907e86e8c4dddde6")


@pytest.mark.parametrize("num_examples", [0, 1, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_tiny_data_sets(name, num_examples):
    few = name.startswith("fixed") and (num_examples == 0 or name == "fixed")
    split = name in ("cyclic", "cyclic_truncated") and num_examples > 0  # in three groups
    if few or split:
        with pytest.raises(FixArgumentsError, match=r"there are only|leaves every group empty"):
            batches(name, num_examples, SEED)
        return
    for batch in batches(name, num_examples, SEED):
        assert all(0 <= i < num_examples for i in batch)


@pytest.mark.parametrize("name", WITH_CHANCE)
def test_randomness_comes_from_the_operating_system_by_default(name):
    assert not equal(batches(name, 40, None), batches(name, 40, None))
    generator = np.random.default_rng(3)
    first, second = batches(name, 40, generator), batches(name, 40, generator)
    assert not equal(first, second)
    assert equal(first, batches(name, 40, np.random.default_rng(3)))


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_global_state_of_numpy_is_unchanged(name):
    before = np.random.get_state()[1].tolist()
    batches(name, 20, None)
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("name", SAMPLERS)
def test_random_access_needs_an_int_seed(name):
    for rng in (None, np.random.default_rng(0), True, 1.0):
        with pytest.raises(FixArgumentsError, match="another draw at every call"):
            SAMPLERS[name].batch(0, population(name, 40), rng)


@pytest.mark.parametrize("name", SAMPLERS)
def test_steps_that_were_not_accounted_for_are_rejected(name):
    with pytest.raises(FixArgumentsError, match="accounted for"):
        SAMPLERS[name].batch(ITERATIONS, population(name, 40), SEED)
    with pytest.raises(FixArgumentsError, match="step=-1"):
        SAMPLERS[name].batch(-1, population(name, 40), SEED)


@pytest.mark.parametrize("name", SAMPLERS)
def test_batches_respect_the_stated_participation(name):
    sampler = SAMPLERS[name]
    if name == "fixed_replaced":
        with pytest.raises(FixArgumentsError, match="no sensitivity"):
            sampler.participation()
        return
    participation = sampler.participation()
    graph = population(name, 40)
    for seed in range(5):
        uses = {}
        for step, batch in enumerate(batches(name, 40, seed)):
            for example in batch.tolist():
                units = graph.owners_of(example).tolist() if name == "multi_owner" else [example]
                for unit in units:
                    uses.setdefault(unit, []).append(step)
        for steps in uses.values():
            assert len(steps) <= participation.max_participations
            assert all(b - a >= participation.min_separation for a, b in itertools.pairwise(steps))


@pytest.mark.parametrize("index, count", [(2, 2), (-1, 2), (0, 0), (1, 1)])
def test_a_process_index_out_of_range_is_an_error(index, count):
    with pytest.raises(FixArgumentsError, match="process"):
        share(10, index, count)


class CustomSampler(BatchSelectionStrategy):
    """Defines only the iterator, as samplers written for JAX Privacy do."""

    def batch_iterator(self, num_examples, rng=None):
        yield np.arange(num_examples)


def test_a_custom_sampler_has_no_event_unless_it_defines_one():
    sampler = CustomSampler()
    assert [b.tolist() for b in sampler.batch_iterator(3)] == [[0, 1, 2]]
    with pytest.raises(FixArgumentsError, match="no event is proven for CustomSampler"):
        sampler.proven_event(10)
    with pytest.raises(FixArgumentsError, match="how often one example takes part"):
        sampler.unamplified_event()
    with pytest.raises(FixArgumentsError, match="relations neighbours select the same"):
        sampler.selection_relations()


def test_the_table_of_samplers_is_complete():
    def subclasses(cls):
        return {cls} | {c for child in cls.__subclasses__() for c in subclasses(child)}

    abstract = {"BatchSelectionStrategy", "RandomAccessSampler", "StatefulSampler"}
    abstract |= {"CustomSampler"}
    assert {c.__name__ for c in subclasses(BatchSelectionStrategy)} - abstract == {
        type(s).__name__ for s in samplers.SAMPLERS.values()
    }
