"""Where every random choice of a sampler comes from: one seed, a purpose, and a place.

A stream belongs to (seed, purpose, place), a place being a step and, within it, a part of the
draw. So step k is drawn without drawing the steps before it, every process draws its part of the
same batch, and nothing is ever seeded with `seed + step`, which would make the streams of adjacent
seeds overlap.
"""

import enum
import numbers
import secrets

import numpy as np

from bevel.errors import FixArgumentsError

RngType = np.random.Generator | int | None

SEED_BITS = 128


class SamplingPurpose(enum.IntEnum):
    """What a stream is for. A number, once used, keeps its meaning: it is part of the draw."""

    SIZE = 0  # how many examples a batch has
    MEMBERS = 1  # which ones
    GROUPS = 2  # cyclic groups and bins, drawn once
    ALLOCATION = 3  # the steps of every example, drawn once
    WARM_START = 4
    WITHIN_USER = 5  # which examples of a user
    ORDER = 6  # the order in which examples are considered


def seed_of(rng: RngType) -> int:
    """A seed of up to 128 bits: the given int, bits of the given Generator, or fresh entropy.

    Amplification by sampling holds only while the batches stay secret, and so this seed: None
    takes it from the operating system, and whoever guesses an int knows the batches.
    """
    if rng is None:
        return secrets.randbits(SEED_BITS)
    if isinstance(rng, np.random.Generator):
        return int.from_bytes(rng.bytes(SEED_BITS // 8), "little")
    return fixed_seed(rng)


def fixed_seed(rng: RngType) -> int:
    """`rng` as the seed of random access: it has to be the same at every call, so an int."""
    if isinstance(rng, bool) or not isinstance(rng, numbers.Integral):
        raise FixArgumentsError(
            f"rng={rng!r} would give another draw at every call, and the batches of a run belong "
            "together: pass an int. `secrets.randbits(128)` makes one that nobody guesses."
        )
    if not 0 <= rng < 2**SEED_BITS:
        raise FixArgumentsError(f"rng={rng}: a seed is a whole number from 0 to 2**128 - 1.")
    return int(rng)


def stream(seed: int, purpose: SamplingPurpose, *place: int) -> np.random.Generator:
    """The generator of one place: independent of those of all other seeds, purposes and places."""
    # Seed and places have a fixed number of 32-bit words, so no two of them share a key.
    words = [(seed >> shift) & 0xFFFFFFFF for shift in range(0, SEED_BITS, 32)]
    key = [int(purpose)]
    for number in place:
        key += [number & 0xFFFFFFFF, number >> 32]
    return np.random.default_rng(np.random.SeedSequence(words, spawn_key=tuple(key)))
