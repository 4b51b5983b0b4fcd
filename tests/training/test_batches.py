"""Batches follow the plan on any mesh, and a process reads only the rows of its devices."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
import training_runs as runs
from jax.sharding import PartitionSpec as P

from bevel.batch_selection import (
    BMinSepSampling,
    ExamplesByUser,
    PaddedSizes,
    RandomAllocationSampling,
    UserSelectionStrategy,
)
from bevel.batch_selection.padding import pad_to_size
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.errors import FixArgumentsError
from bevel.sharding import make_mesh
from bevel.training.batches import Batches, BatchLayout, Selection, batch_layout
from bevel.training.data import rows, source_of


def batches(layout=None, sizes=(8, 16), **changed):
    fields = {"sampler": runs.plan().batch_selection_strategy, "population": runs.N, "seed": 11}
    return Batches(
        source_of(runs.data()),
        sizes=PaddedSizes(sizes, 8),
        layout=layout or BatchLayout(),
        **fields | changed,
    )


def whole(selection):
    """All padded indices of a step."""
    return selection.draw(np.arange(selection.size))


def selection_of(indices):
    return Selection(len(indices), indices.__getitem__)


@pytest.mark.parametrize("mesh", ["data=8", "data=4,model=2", "replica=2,data=2,model=2"])
def test_a_batch_is_the_same_on_every_mesh(mesh):
    layout = batch_layout(make_mesh(mesh))
    here, there = batches().since(2), batches(layout).since(2)
    for _ in range(3):
        one, other = next(here), next(there)
        assert one.step == other.step
        for a, b in zip(jax.tree.leaves(one[1:4]), jax.tree.leaves(other[1:4]), strict=True):
            assert np.array_equal(a, b)
            assert b.sharding.spec == P(layout.axes)


def test_batches_are_those_of_the_sampler_from_any_step_on():
    strategy = runs.plan().batch_selection_strategy
    every = list(strategy.batch_iterator(runs.N, 11))
    for step, batch in enumerate(batches().since(3), 3):
        numbers = every[step]
        assert int((~np.asarray(batch.is_padding)).sum()) == len(numbers)
        expected = rows(batches().source, numbers)
        assert np.array_equal(batch.data["x"][: len(numbers)], expected["x"])
        assert not np.asarray(batch.data["x"])[len(numbers) :].any()
    assert step == runs.STEPS - 1


def test_an_empty_batch_is_padding_and_a_large_one_goes_to_a_larger_size():
    made = batches(sizes=(8,))
    empty = made.load(0, selection_of(np.full(8, -1)))
    assert np.asarray(empty.is_padding).all() and not np.asarray(empty.data["x"]).any()
    sizes = [selection.size for selection in batches(sizes=(8,)).selections()]
    assert set(sizes) - {8}, "the draw has no batch above 8 rows: choose another seed"
    assert all(size % 8 == 0 for size in sizes)


def test_samplers_without_random_access_go_on_where_they_were():
    sampler = BMinSepSampling(0.2, runs.STEPS, min_sep=3)
    every = list(sampler.batch_iterator(runs.N, 11))
    later = list(batches(sampler=sampler).selections(5))
    for found, expected in zip(map(whole, later), every[5:], strict=True):
        assert np.array_equal(found[found >= 0], expected)
    state = later[0].sampler_state  # after step 5
    again = list(batches(sampler=sampler).selections(6, state))
    assert state.step == 6 and len(again) == len(later) - 1
    for found, expected in zip(again, later[1:], strict=True):
        assert np.array_equal(whole(found), whole(expected))


USERS = ExamplesByUser.of(np.arange(runs.N) // 3)
SELECTIONS = {
    "poisson": {},
    "allocated": {"sampler": RandomAllocationSampling(1, runs.STEPS)},
    "users": {
        "sampler": UserSelectionStrategy(RandomAllocationSampling(2, runs.STEPS), 2, True),
        "population": USERS,
    },
    "min_sep": {"sampler": BMinSepSampling(0.2, runs.STEPS, min_sep=3)},
}


@pytest.mark.parametrize("microbatch_size", [None, 2, 4])
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("name", SELECTIONS)
def test_parts_of_a_batch_are_slices_of_the_padded_batch(name, parts, microbatch_size):
    made = batches(**SELECTIONS[name], microbatch_size=microbatch_size)
    every = made.sampler.batch_iterator(made.population, made.seed)
    for selection, batch in zip(made.selections(), every, strict=True):
        expected = pad_to_size(batch, made.sizes.size_for(len(batch)), microbatch_size)
        edges = [selection.size * k // parts for k in range(parts + 1)]
        drawn = [selection.draw(np.arange(*bounds)) for bounds in itertools.pairwise(edges)]
        assert np.array_equal(np.concatenate(drawn), expected)


def test_a_part_draws_only_its_rows(monkeypatch):
    drawn = []
    at_rows = RandomAccessSampler.at_rows

    def recorded(sampler, step, num_examples, rng, rows):
        drawn.append(len(rows))
        return at_rows(sampler, step, num_examples, rng, rows)

    monkeypatch.setattr(RandomAccessSampler, "at_rows", recorded)
    made = batches(sampler=RandomAllocationSampling(1, 1), sizes=(48,), microbatch_size=4)
    selection = next(made.selections())
    assert not drawn and selection.draw(np.arange(6, 12)).shape == (6,) and drawn == [6]


def test_users_bring_their_examples_and_a_mask_of_the_missing():
    users = ExamplesByUser.of(np.arange(runs.N) // 3)
    strategy = UserSelectionStrategy(runs.plan(num_examples=16).mechanism.sampler, 4)
    made = batches(sampler=strategy, population=users)
    batch = next(made.since(0))
    missing = np.asarray(batch.is_missing)
    assert missing.shape == (len(batch.is_padding), 4)
    assert np.array_equal(missing.all(axis=1), batch.is_padding)
    assert not np.asarray(batch.data["x"])[missing].any()
    shapes = made.shapes(len(batch.is_padding))
    for found, said in zip(jax.tree.leaves(batch[1:4]), jax.tree.leaves(shapes[1:4]), strict=True):
        assert (found.shape, found.dtype, found.sharding) == (said.shape, said.dtype, said.sharding)


def test_a_process_reads_only_the_rows_of_its_devices(monkeypatch):
    layout = batch_layout(make_mesh("data=4,model=2"))
    asked = []
    made = batches(layout)
    read = made.source.read
    monkeypatch.setattr(made.source, "read", lambda n: asked.append(n.tolist()) or read(n))
    made.load(0, selection_of(np.array([1, 0, 2, 3, 5, 4, 6, 7])))
    # Each shard is read once, although two devices hold it, and in increasing order.
    assert sorted(asked) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_digest_is_that_of_the_rows_and_needs_a_key():
    def digests(given=None, key=b"k" * 32, layout=None, step=0):
        made = batches(layout) if layout else batches()
        made = dataclasses.replace(made, digest_key=key, source=source_of(given or runs.data()))
        return next(made.since(step)).digest

    one, changed = digests(), runs.data()
    assert one == digests() and len(one) == 16 and digests(key=b"") == b""
    assert one != digests(key=b"j" * 32) and one != digests(step=1)
    indices = whole(next(batches().selections()))
    row = indices[0]
    changed["x"][row, 0] += 1e-6
    assert digests(changed) != one
    absent = set(range(runs.N)) - set(indices.tolist())
    changed = runs.data()
    changed["x"][min(absent)] += 1
    assert digests(changed) == one  # it covers only the rows that the step reads
    assert digests(layout=batch_layout(make_mesh("data=8"))) != b""


def test_the_axes_of_a_batch_are_found_or_said():
    mesh = make_mesh("data=4,model=2")
    assert batch_layout(mesh).axes == ("data",) and batch_layout(mesh).parts == 4
    assert batch_layout(mesh, ("data", "model")).parts == 8
    assert batch_layout(None).parts == 1
    with pytest.raises(FixArgumentsError, match="batch_axes="):
        batch_layout(make_mesh("x=8"))
    with pytest.raises(FixArgumentsError, match="the mesh has no axis 'rows'"):
        batch_layout(mesh, "rows")
