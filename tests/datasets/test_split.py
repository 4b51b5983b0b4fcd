"""What is held out depends on each record alone, and on each user alone where there are users."""

import hashlib

import numpy as np
import pytest

from bevel.datasets.split import Part, Users, hold_out
from bevel.training.data import ArraySource

X = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)


def part(x=X, users=None, names=None):
    records = ArraySource({"x": x, "y": np.zeros(len(x), np.int32)})
    return Part(records, None if users is None else Users.of(users), names)


def held(found):
    records = found.records
    return {x.tobytes() for x in records.read(np.arange(len(records)))["x"]}


def test_the_fraction_and_the_seed_are_kept():
    rest, test = hold_out(part(), 0.3, 0)
    assert len(rest.records) + len(test.records) == 500
    assert abs(len(test.records) - 150) < 4 * np.sqrt(500 * 0.3 * 0.7)
    assert held(test) == held(hold_out(part(), 0.3, 0)[1])
    assert held(test) != held(hold_out(part(), 0.3, 1)[1])
    assert not held(test) & held(rest)


@pytest.mark.parametrize("removed", [0, 250, 499])
def test_neighbouring_files_have_neighbouring_training_sets(removed):
    """Without one record, every other record is in the part that it was in."""
    rest, test = hold_out(part(), 0.3, 0)
    fewer = np.delete(X, removed, axis=0)
    for whole, without in zip((rest, test), hold_out(part(fewer), 0.3, 0), strict=True):
        assert held(whole) - held(without) <= {X[removed].tobytes()}
        assert held(without) <= held(whole)


def test_the_order_of_records_changes_nothing():
    backwards = hold_out(part(X[::-1]), 0.3, 0)
    for one, other in zip(hold_out(part(), 0.3, 0), backwards, strict=True):
        assert held(one) == held(other)


def test_a_user_is_in_one_part_with_all_records():
    users = np.array([f"user {k % 50}" for k in range(500)])
    rest, test = hold_out(part(users=users), 0.3, 0)
    assert set(rest.users.numbers) | set(test.users.numbers) == set(range(50))
    assert not set(rest.users.numbers) & set(test.users.numbers)
    # A user without one record is still in the same part.
    fewer = hold_out(part(X[1:], users[1:]), 0.3, 0)
    assert held(fewer[1]) | {X[0].tobytes()} >= held(test)


def test_names_are_hashed_instead_of_records_where_there_are_names():
    names = [f"cat/{k}.png" for k in range(500)]
    _, test = hold_out(part(names=names), 0.3, 7)
    hashes = [
        hashlib.blake2b(n.encode(), key=b"7", person=b"bevel test set", digest_size=8).digest()
        for n in names
    ]
    expected = [
        n for n, h in zip(names, hashes, strict=True) if int.from_bytes(h, "little") < 0.3 * 2**64
    ]
    assert test.names == expected
