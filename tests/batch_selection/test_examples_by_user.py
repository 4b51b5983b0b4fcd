"""The examples of users, from ids in any order or from offsets."""

import numpy as np
import pytest

from bevel.batch_selection import ExamplesByUser
from bevel.batch_selection import examples_by_user as module
from bevel.errors import FixArgumentsError

IDS = np.array([30, 10, 20, 10, 10, 30, 10, 20, 10])


def examples(users, user):
    """All examples of one user."""
    count = int(users.counts(np.array([user]))[0])
    return users.examples_at(np.array([user]), np.arange(count)[None])[0].tolist()


def test_examples_by_user():
    users = ExamplesByUser.of(IDS)
    assert len(users) == 3 and users.user_ids.tolist() == [10, 20, 30]
    assert [examples(users, u) for u in range(3)] == [[1, 3, 4, 6, 8], [2, 7], [0, 5]]
    assert users.num_examples == 9 and ExamplesByUser.of(users) is users
    assert len(ExamplesByUser.of(np.array([], int))) == 0


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
@pytest.mark.parametrize("ids", [[1, 1, 4, 7, 7, 7], ["a", "b", "b"], [3], [2, 2], []])
def test_sorted_ids_need_no_list_of_examples(monkeypatch, ids, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    users = ExamplesByUser.of(np.array(ids, int if not ids else None))
    assert users.members is None and users.num_examples == len(ids)
    assert users.user_ids.tolist() == sorted(set(ids))
    found = [[ids[k] for k in examples(users, u)] for u in range(len(users))]
    assert found == [[i] * ids.count(i) for i in sorted(set(ids))]


@pytest.mark.parametrize(
    "ids",
    [
        np.array([0.0, np.nan, np.nan]),  # NaN differs from itself
        np.array(["a", None], object),
        np.array([1, "a"], object),
        np.ma.masked_array([1, 2], [False, True]),
        np.array([1j, 2j]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.array([True, False]),
    ],
)
def test_examples_without_an_id_are_refused(ids):
    with pytest.raises(FixArgumentsError, match=r"user_ids (has dtype|is a masked array)"):
        ExamplesByUser.of(ids)


def test_offsets_are_those_of_sorted_ids(tmp_path):
    ids = np.sort(np.random.default_rng(0).integers(50, size=400))
    expected = ExamplesByUser.of(ids)
    np.save(tmp_path / "offsets.npy", expected.bounds)
    users = ExamplesByUser.from_offsets(np.load(tmp_path / "offsets.npy", mmap_mode="r"))
    assert isinstance(users.bounds, np.memmap) and len(users) == len(expected)
    assert [examples(users, u) for u in range(len(users))] == [
        examples(expected, u) for u in range(len(users))
    ]


@pytest.mark.parametrize(
    "offsets, match",
    [
        ([1, 2], "starts with 1"),
        ([0, 5, 4, 9], "decreases after user 1, from 5 to 4"),
        ([0.0, 1.0], "1-D array of integers"),
        ([[0, 1]], "1-D array of integers"),
        (np.empty(0, int), "1-D array of integers"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 100])
def test_wrong_offsets(monkeypatch, offsets, match, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    with pytest.raises(FixArgumentsError, match=match):
        ExamplesByUser.from_offsets(np.array(offsets))
