"""Canaries: coordinates, places and coins from a seed, and records that only memorisation fits."""

import jax.numpy as jnp
import numpy as np
import pytest

from bevel.auditing import (
    gradient_canaries,
    mislabelled_records,
    random_records,
    record_canaries,
)
from bevel.errors import FixArgumentsError

PARAMS = {
    "b": jnp.zeros(8),
    "n": jnp.zeros((), jnp.int32),
    "s": jnp.zeros(()),
    "w": jnp.ones((30, 7)),
}
DATA = {"x": np.arange(40.0).reshape(20, 2), "y": np.arange(20) % 3}


def test_coordinates_are_drawn_without_repetition_in_proportion_to_size():
    canaries = gradient_canaries(PARAMS, 219, 300, seed=1)  # as many as there are floats
    seen = {
        (int(k), *map(int, index)) for k, index in zip(canaries.leaf, canaries.index, strict=True)
    }
    assert len(seen) == 219
    assert {k: len(v) for k, v in canaries.by_leaf().items()} == {0: 8, 2: 1, 3: 210}
    assert len(set(canaries.units.tolist())) == 219
    assert canaries.paths == ("b", "n", "s", "w")


def test_a_seed_fixes_canaries_and_another_changes_them():
    first, again, other = (gradient_canaries(PARAMS, 50, 300, seed=s) for s in (1, 1, 2))
    for name in ("units", "held_in", "leaf", "index"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert (first.held_in != other.held_in).any()


def test_coins_are_fair_and_independent_of_places():
    canaries = gradient_canaries({"w": jnp.zeros(20_000)}, 10_000, 20_000, seed=0)
    assert abs(canaries.held_in.mean() - 0.5) < 0.02
    halves = canaries.held_in[canaries.units < 10_000], canaries.held_in[canaries.leaf == 0]
    assert all(abs(half.mean() - 0.5) < 0.03 for half in halves)


def test_values_are_the_entries_at_the_coordinates():
    params = {
        "b": jnp.arange(8.0),
        "s": jnp.float32(50),
        "w": jnp.arange(100.0, 310).reshape(30, 7),
    }
    canaries = gradient_canaries(params, 219, 300, seed=2)
    leaves = list(params.values())
    expected = [
        float(leaves[k][tuple(index[: leaves[k].ndim])])
        for k, index in zip(canaries.leaf, canaries.index, strict=True)
    ]
    np.testing.assert_array_equal(canaries.values(params), expected)


@pytest.mark.parametrize(
    ("count", "units", "message"),
    [
        (220, 300, "canaries=220, but there are only 219 parameters"),
        (100, 99, "canaries=100, but the data has only 99 units"),
        (1, 99, "canaries=1: pass an integer of at least 2"),
    ],
)
def test_impossible_numbers_are_refused(count, units, message):
    with pytest.raises(FixArgumentsError, match=message):
        gradient_canaries(PARAMS, count, units, seed=0)


def test_random_records_mix_the_values_of_each_entry():
    records = random_records(DATA, 500, seed=0)
    assert records["x"].shape == (500, 2) and records["y"].shape == (500,)
    assert set(records["x"][:, 0]) <= set(DATA["x"][:, 0])
    assert (np.diff(records["x"], axis=1) != 1).any()  # no longer rows of the data


def test_mislabelled_records_have_wrong_labels_that_exist():
    records = mislabelled_records(DATA, "y", 300, seed=0)
    rows = (records["x"][:, 0] / 2).astype(int)
    assert (records["y"] != DATA["y"][rows]).all()
    assert set(records["y"]) == {0, 1, 2}


def test_labels_of_one_class_cannot_be_wrong():
    with pytest.raises(FixArgumentsError, match="at least two classes"):
        mislabelled_records({"y": np.zeros(4, int)}, "y", 3)


def test_records_of_different_lengths_are_refused():
    with pytest.raises(FixArgumentsError, match="one row for each record"):
        record_canaries({"x": np.zeros((4, 2)), "y": np.zeros(3)}, 10)
