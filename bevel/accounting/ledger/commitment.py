"""What a ledger may say about a key: that it is the same one, and nothing else."""

import hashlib
import secrets

from bevel.errors import FixArgumentsError

SALT_BYTES = 16


def new_salt() -> bytes:
    """A salt from the operating system's entropy. Keep it with the key, and as secret."""
    return secrets.token_bytes(SALT_BYTES)


def key_commitment(key: bytes, salt: bytes) -> str:
    """A commitment to a key: the same for the same key and salt, telling nothing without the salt.

    Args:
      key: the key's bytes (`jax.random.key_data(key)` as bytes, and sampling seeds with it).
      salt: of `new_salt()`. It is kept beside the key and never in the ledger: a key of few bits,
        such as `jax.random.key(0)`, could otherwise be found by trying all of them.
    """
    for name, value in [("key", key), ("salt", salt)]:
        if not isinstance(value, bytes):
            raise FixArgumentsError(f"{name} is a {type(value).__name__}: give bytes.")
    if len(salt) < SALT_BYTES:
        raise FixArgumentsError(
            f"a salt of {len(salt)} bytes: use new_salt(), which gives {SALT_BYTES}. A short or "
            "empty salt lets anyone find a weak key by trying."
        )
    if not key:
        raise FixArgumentsError("the key is empty: there is nothing to commit to.")
    # Lengths first, so that no other pair of salt and key has the same text.
    text = len(salt).to_bytes(8, "big") + salt + key
    return hashlib.sha256(text).hexdigest()
