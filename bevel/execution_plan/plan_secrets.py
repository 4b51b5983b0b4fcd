"""What a run must keep to itself: where its noise and its batches come from."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bevel.accounting.ledger import key_commitment
from bevel.errors import FixArgumentsError
from bevel.noise_addition import keys

BYTES = 32
VERSION = 1


@dataclasses.dataclass(frozen=True)
class PlanSecrets:
    """256 secret bits, from which the noise key, the sampling seed and their commitment come.

    Whoever knows them can remove the noise and knows every batch. Keep them in a file that only the
    owner can read (`to_dict`, `from_dict`), never in a checkpoint, a log or a ledger. Neither
    shown nor part of a plan's fingerprint.

    Attributes:
      generator: of the noise: 'chacha20', or 'threefry2x32', which is faster and keeps 64 bits.
      known: made from a seed that anyone can guess, for tests: nothing is protected by it.
    """

    root: bytes = dataclasses.field(repr=False)
    generator: str = "chacha20"
    known: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.root, bytes) or len(self.root) != BYTES:
            raise FixArgumentsError(
                f"root is not {BYTES} bytes: use PlanSecrets.new(), or from_dict for the secrets "
                "of a run that goes on."
            )
        if self.generator not in keys.WORDS or (self.known and self.generator != "chacha20"):
            raise FixArgumentsError(
                f"generator={self.generator!r}: give one of {', '.join(keys.WORDS)}; for tests, "
                "chacha20."
            )

    @classmethod
    def new(cls, generator: str = "chacha20") -> "PlanSecrets":
        """From the operating system's entropy.

        In a run of several processes all of them must call this together: they get the same bits,
        drawn by the first.
        """
        words = np.frombuffer(os.urandom(BYTES), np.uint32)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            words = np.asarray(multihost_utils.broadcast_one_to_all(words))
        return cls(words.tobytes(), generator)

    @classmethod
    def for_tests(cls, seed: int) -> "PlanSecrets":
        """The same at every call: for tests, and for nothing that is to be private."""
        root = hashlib.blake2b(str(int(seed)).encode(), digest_size=BYTES, person=b"for tests")
        return cls(root.digest(), known=True)

    def of_attempt(self, attempt: int) -> "PlanSecrets":
        """The secrets of steps that are run again, as a new attempt: all noise and batches afresh.

        Noise alone would not do: a batch that is used twice has been sampled once, and its event
        would be charged as if it had been sampled twice. Attempt 0 has these secrets.
        """
        if attempt == 0:
            return self
        return dataclasses.replace(self, root=self._derived(f"attempt {attempt}", BYTES))

    @property
    def noise_key(self) -> jax.Array:
        """The key of the noise, typed: what `update(..., prng_key=)` of the plan's noise takes."""
        if self.known:
            return keys.seed_key(self.noise_seed)
        size = keys.WORDS[self.generator]
        words = np.frombuffer(self._derived("noise", 4 * size), np.uint32)
        return keys.wrapped(words, self.generator)

    @property
    def noise_seed(self) -> int:
        """Of a key that is known: a privatizer takes it as one, and records that."""
        return int.from_bytes(self._derived("noise", 8), "little")

    @property
    def sampling_seed(self) -> int:
        """The `rng` of the plan's sampler: 128 bits."""
        return int.from_bytes(self._derived("sampling", 16), "little")

    @property
    def row_key(self) -> bytes:
        """Of digests of records: without it, they tell nothing of the data."""
        return self._derived("rows", BYTES)

    @property
    def commitment(self) -> str:
        """What a ledger records of them: `Ledger.run(..., key=secrets.commitment)`."""
        return key_commitment(self.root, self._derived("salt", 16))

    def to_dict(self) -> dict[str, Any]:
        """For a file that only the owner can read."""
        return {
            "version": VERSION,
            "root": self.root.hex(),
            "generator": self.generator,
            "known": self.known,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "PlanSecrets":
        """What `to_dict` gave."""
        try:
            version, root = saved["version"], bytes.fromhex(saved["root"])
            generator, known = saved["generator"], bool(saved["known"])
        except (KeyError, TypeError, ValueError):
            # The cause is not shown: it may hold the secret.
            raise FixArgumentsError(
                "these are not the secrets of a plan: give what PlanSecrets.to_dict() made."
            ) from None
        if version != VERSION:
            raise FixArgumentsError(
                f"secrets of version {version!r}, and this bevel reads version {VERSION}: use the "
                "bevel that wrote them."
            )
        return cls(root, generator, known)

    def _derived(self, purpose: str, size: int) -> bytes:
        """Bytes for one purpose, which tell nothing of those for another."""
        return hashlib.blake2b(purpose.encode(), key=self.root, digest_size=size).digest()
