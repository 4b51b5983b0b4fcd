"""The secrets of a run: the noise key and the sampling seed."""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bevel.accounting.ledger import key_commitment
from bevel.checks import flag, instance, one_of, shown, whole_number
from bevel.errors import FixArgumentsError
from bevel.noise_addition import keys

BYTES = 32
VERSION = 1


@dataclasses.dataclass(frozen=True)
class PlanSecrets:
    """256 secret bits, from which the noise key, the sampling seed and a commitment are derived.

    Anyone who knows them can remove the noise and reconstruct every batch. Keep them in a file that
    only the owner can read (`to_dict`, `from_dict`), never in a checkpoint, a log or a ledger. They
    are not shown, and not part of a plan's fingerprint.

    Attributes:
      root: the secret bits.
      generator: of the noise: 'chacha20', or 'threefry2x32', which is faster but has 64-bit keys.
      known: True for secrets made from a seed, for tests. They protect nothing.
    """

    root: bytes = dataclasses.field(repr=False)
    generator: str = "chacha20"
    known: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.root, bytes) or len(self.root) != BYTES:
            raise FixArgumentsError(
                f"root is not {BYTES} bytes: use PlanSecrets.new(), or PlanSecrets.from_dict to "
                "resume a run."
            )
        one_of("generator", self.generator, tuple(keys.WORDS))
        flag("known", self.known)
        if self.known and self.generator != "chacha20":
            raise FixArgumentsError(
                f"generator={shown(self.generator)}: pass chacha20 for secrets made by for_tests."
            )

    @classmethod
    def new(cls, generator: str = "chacha20") -> "PlanSecrets":
        """Draws secrets from the operating system's entropy.

        In a multi-process run, all processes must call this together. They get the same secrets,
        which the first process draws.
        """
        words = np.frombuffer(os.urandom(BYTES), np.uint32)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            words = np.asarray(multihost_utils.broadcast_one_to_all(words))
        return cls(words.tobytes(), generator)

    @classmethod
    def for_tests(cls, seed: int) -> "PlanSecrets":
        """Returns the same secrets at every call. For tests only: they protect nothing."""
        number = whole_number("seed", seed, -(2**128), 2**128)
        root = hashlib.blake2b(str(number).encode(), digest_size=BYTES, person=b"for tests")
        return cls(root.digest(), known=True)

    def of_attempt(self, attempt: int) -> "PlanSecrets":
        """Returns the secrets of an attempt to run steps again. Attempt 0 has these secrets.

        It has new noise and new batches. With new noise alone, a batch would be sampled once and
        used twice, while its event is charged as if it had been sampled twice.
        """
        if attempt == 0:
            return self
        return dataclasses.replace(self, root=self._derived(f"attempt {attempt}", BYTES))

    @property
    def noise_key(self) -> jax.Array:
        """The noise key. Pass it as `update(..., prng_key=)` to the plan's noise."""
        if self.known:
            return keys.seed_key(self.noise_seed)
        size = keys.WORDS[self.generator]
        words = np.frombuffer(self._derived("noise", 4 * size), np.uint32)
        return keys.wrapped(words, self.generator)

    @property
    def noise_seed(self) -> int:
        """The seed of a known key. A privatizer made with it records that its key is not secret."""
        return int.from_bytes(self._derived("noise", 8), "little")

    @property
    def sampling_seed(self) -> int:
        """The 128-bit seed that the plan's sampler takes as `rng`."""
        return int.from_bytes(self._derived("sampling", 16), "little")

    @property
    def row_key(self) -> bytes:
        """The key of digests of records. Without it, they reveal nothing about the data."""
        return self._derived("rows", BYTES)

    @property
    def commitment(self) -> str:
        """The commitment that a ledger records: `Ledger.run(..., key=secrets.commitment)`."""
        return key_commitment(self.root, self._derived("salt", 16))

    def to_dict(self) -> dict[str, Any]:
        """Returns the secrets as a dict, for a file that only the owner can read."""
        return {
            "version": VERSION,
            "root": self.root.hex(),
            "generator": self.generator,
            "known": self.known,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "PlanSecrets":
        """Restores secrets from the result of `to_dict`."""
        instance("saved", saved, Mapping, "the result of PlanSecrets.to_dict()")
        try:
            version, root = saved["version"], bytes.fromhex(saved["root"])
            generator, known = saved["generator"], bool(saved["known"])
        except (KeyError, IndexError, TypeError, ValueError):
            # Do not show the cause: it may contain the secret.
            raise FixArgumentsError(
                "these are not the secrets of a plan: pass the result of PlanSecrets.to_dict()."
            ) from None
        if version != VERSION:
            raise FixArgumentsError(
                f"these secrets have version {shown(version)}, but this release of bevel reads "
                f"version {VERSION}: use the release that wrote them."
            )
        return cls(root, generator, known)

    def _derived(self, purpose: str, size: int) -> bytes:
        """Derives bytes for one purpose, which reveal nothing about those of another."""
        return hashlib.blake2b(purpose.encode(), key=self.root, digest_size=size).digest()
