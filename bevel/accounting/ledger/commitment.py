"""Commitments to keys: they show that a key is the same, and reveal nothing else about it."""

import hashlib
import secrets

from bevel.errors import FixArgumentsError

SALT_BYTES = 16


def new_salt() -> bytes:
    """Returns a random salt from the operating system. Keep it secret, together with the key."""
    return secrets.token_bytes(SALT_BYTES)


def key_commitment(key: bytes, salt: bytes) -> str:
    """Returns a commitment to a key, which reveals nothing about the key without the salt.

    The same key and salt always give the same commitment.

    Args:
      key: the key as bytes (`jax.random.key_data(key)` as bytes, followed by sampling seeds).
      salt: a salt from `new_salt()`. Store it with the key and never in the ledger. Otherwise a key
        of few bits, such as `jax.random.key(0)`, could be found by trying all of them.
    """
    for name, value in [("key", key), ("salt", salt)]:
        if not isinstance(value, bytes):
            raise FixArgumentsError(f"{name} has type {type(value).__name__}: pass bytes.")
    if len(salt) < SALT_BYTES:
        raise FixArgumentsError(
            f"salt has {len(salt)} bytes, so anyone could find a weak key by trying all keys. Use "
            f"new_salt(), which returns {SALT_BYTES} bytes."
        )
    if not key:
        raise FixArgumentsError("key is empty: pass the bytes of the key.")
    # The length of the salt comes first, so that no other pair of salt and key gives the same text.
    text = len(salt).to_bytes(8, "big") + salt + key
    return hashlib.sha256(text).hexdigest()
