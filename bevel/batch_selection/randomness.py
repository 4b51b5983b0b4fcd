"""Random streams of the samplers, keyed by seed, purpose, step and part of the draw.

Every stream can be created directly from its key. A sampler can therefore draw step k without the
steps before it, and each process can draw its part of the same batch. No stream is seeded with
`seed + step`, because streams of adjacent seeds would then overlap.
"""

import enum
import numbers
import secrets

import numpy as np

from bevel.errors import FixArgumentsError

RngType = np.random.Generator | int | None

SEED_BITS = 128


class SamplingPurpose(enum.IntEnum):
    """What a stream is used for. Never change a value: it would change every draw."""

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
    if isinstance(rng, bool) or not isinstance(rng, numbers.Integral):
        raise FixArgumentsError(
            f"rng={rng!r} would give another draw at every call, but the batches of a run must "
            "come from one seed. Pass an int, such as secrets.randbits(128)."
        )
    if not 0 <= rng < 2**SEED_BITS:
        raise FixArgumentsError(f"rng={rng}: pass an int from 0 to 2**128 - 1.")
    return int(rng)


def stream(seed: int, purpose: SamplingPurpose, *index: int) -> np.random.Generator:
    """Returns the generator of one key, independent of all others; `index` is (step, part)."""
    # Seed and indices have a fixed number of 32-bit words each, so no two streams share a key.
    words = [(seed >> shift) & 0xFFFFFFFF for shift in range(0, SEED_BITS, 32)]
    key = [int(purpose)]
    for number in index:
        key += [number & 0xFFFFFFFF, number >> 32]
    return np.random.default_rng(np.random.SeedSequence(words, spawn_key=tuple(key)))
