"""Random numbers of a search: functions of its secret seed and of what they are for.

A search that is started again draws the same numbers.
"""

import hashlib

BITS = 53


def uniform(seed: int, purpose: str) -> float:
    """A number strictly between 0 and 1."""
    key = seed.to_bytes(16, "little")
    hashed = hashlib.blake2b(purpose.encode(), key=key, person=b"bevel tuning", digest_size=8)
    number = int.from_bytes(hashed.digest(), "little") >> (64 - BITS)
    return (number + 0.5) / 2**BITS
