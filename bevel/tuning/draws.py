"""Random numbers of a search: functions of its secret seed and of their purpose.

A search that is started again draws the same numbers.
"""

import hashlib

BITS = 512  # enough for very unlikely numbers of trials to occur, which the price relies on


def uniform(seed: int, purpose: str) -> float:
    """A number above 0 and at most 1. Near 0 it has the full precision of floating point."""
    key = seed.to_bytes(16, "little")
    size = BITS // 8
    hashed = hashlib.blake2b(purpose.encode(), key=key, person=b"bevel tuning", digest_size=size)
    number = int.from_bytes(hashed.digest(), "little")
    return (2 * number + 1) / 2 ** (BITS + 1)
