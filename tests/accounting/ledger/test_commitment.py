"""Commitments: equal for equal keys, and they reveal nothing else."""

import pytest

from bevel.accounting.ledger import key_commitment, new_salt
from bevel.errors import FixArgumentsError


def test_the_same_key_and_salt_give_the_same_commitment():
    salt = new_salt()
    assert key_commitment(b"key", salt) == key_commitment(b"key", salt)
    assert key_commitment(b"key", salt) != key_commitment(b"kez", salt)
    assert key_commitment(b"key", salt) != key_commitment(b"key", new_salt())


def test_bytes_may_not_move_between_salt_and_key():
    assert key_commitment(b"bc", b"s" * 16 + b"a") != key_commitment(b"abc", b"s" * 16)


def test_salts_are_new():
    assert len({new_salt() for _ in range(100)}) == 100
    assert len(new_salt()) == 16


@pytest.mark.parametrize(
    "key, salt, message",
    [
        ("key", b"s" * 16, "key has type str"),
        (b"key", None, "salt has type NoneType"),
        (b"key", b"", "salt has 0 bytes.* Use new_salt"),
        (b"", b"s" * 16, "key is empty"),
    ],
)
def test_invalid_keys_and_salts_are_refused(key, salt, message):
    with pytest.raises(FixArgumentsError, match=message):
        key_commitment(key, salt)
