"""Keys and random numbers of the samplers, derived from the seed, a purpose, a step and a part.

Every key can be derived directly. A sampler can therefore draw step k without the steps before it,
and each process can draw its part of the same batch. Keys and numbers are BLAKE2b of the purpose
and the index, keyed with the seed, so they reveal nothing about each other or the seed.
"""

import enum
import hashlib
import itertools
import numbers
import secrets
from collections.abc import Iterator

import numpy as np

from bevel.checks import shown
from bevel.errors import FixArgumentsError

RngType = np.random.Generator | int | None

SEED_BITS = 128
# Increase this with every change of what a sampler draws from a seed. It is part of the fingerprint
# of a plan, so that no run goes on with another draw than it was started with.
DRAW_VERSION = 3


class SamplingPurpose(enum.IntEnum):
    """What a key is used for. Never change a value: it would change every draw."""

    SIZE = 0  # the batch size
    MEMBERS = 1  # the examples of a batch
    GROUPS = 2  # cyclic groups and bins, drawn once
    ALLOCATION = 3  # the steps of every example, drawn once
    WARM_START = 4
    WITHIN_USER = 5  # the examples of a user
    ORDER = 6  # the order in which examples are considered


def seed_of(rng: RngType) -> int:
    """Returns a seed of up to 128 bits: the int itself, bits of the Generator, or fresh entropy.

    Amplification by sampling holds only while the batches are secret, so the seed must be secret
    too. None takes it from the operating system; anyone who guesses an int knows the batches.
    """
    if rng is None:
        return secrets.randbits(SEED_BITS)
    if isinstance(rng, np.random.Generator):
        return int.from_bytes(rng.bytes(SEED_BITS // 8), "little")
    return fixed_seed(rng)


def fixed_seed(rng: RngType) -> int:
    """Checks that `rng` is an int: random access needs the same seed at every call."""
    if isinstance(rng, bool | np.timedelta64) or not isinstance(rng, numbers.Integral):
        raise FixArgumentsError(
            f"rng={shown(rng)} would give another draw at every call, but the batches of a run "
            "must come from one seed. Pass an int, such as secrets.randbits(128)."
        )
    if not 0 <= rng < 2**SEED_BITS:
        raise FixArgumentsError(f"rng={shown(rng)}: pass an int from 0 to 2**128 - 1.")
    return int(rng)


def derived_key(seed: int, purpose: SamplingPurpose, *index: int) -> bytes:
    """Returns 16 bytes for one purpose and index, such as (step,)."""
    return _hashed(seed, purpose, index, 0, 16)


def uniforms(seed: int, purpose: SamplingPurpose, *index: int) -> Iterator[float]:
    """Yields independent numbers between 0 and 1, neither of which occurs, from 52 bits each."""
    for block in itertools.count(1):
        for word in np.frombuffer(_hashed(seed, purpose, index, block, 64), "<u8").tolist():
            yield ((word >> 12) + 0.5) * 2.0**-52


def stream(seed: int, purpose: SamplingPurpose, *index: int) -> np.random.Generator:
    """Returns a generator for one purpose and index, for draws that take a pass over all data."""
    return np.random.default_rng(np.frombuffer(derived_key(seed, purpose, *index), "<u4"))


def _hashed(seed: int, purpose: int, index: tuple[int, ...], block: int, size: int) -> bytes:
    # All numbers have 8 bytes, and the number of indices comes first: no two messages are equal.
    message = np.asarray([len(index), purpose, *index, block], "<u8").tobytes()
    key = seed.to_bytes(SEED_BITS // 8, "little")
    return hashlib.blake2b(message, key=key, digest_size=size, person=b"bevel batches").digest()
