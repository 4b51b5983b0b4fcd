"""Commitments: equal for equal keys, and nothing else to be learned."""

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
        ("key", b"s" * 16, "key is a str"),
        (b"key", None, "salt is a NoneType"),
        (b"key", b"", "a salt of 0 bytes: use new_salt"),
        (b"", b"s" * 16, "the key is empty"),
    ],
)
def test_what_would_hide_nothing_is_refused(key, salt, message):
    with pytest.raises(FixArgumentsError, match=message):
        key_commitment(key, salt)
