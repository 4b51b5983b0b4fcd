"""Noise keys, and the generators that turn them into random numbers.

| generator      | key      | description                                                      |
| -------------- | -------- | ---------------------------------------------------------------- |
| `CHACHA20`     | 256 bits | a stream cipher, for noise that must withstand an adversary      |
| threefry (JAX) | 64 bits  | JAX's own generator: faster, but its key can be found by search  |

A key is a secret: anyone who knows it can remove the noise. Keep it out of checkpoints, logs and
compiled programs that others can read. Use a key for one privatizer of one run only: if two
mechanisms add the same noise, the difference of their outputs has none. A process refuses a key
from which another privatizer has drawn noise, and warns if that privatizer no longer exists, as
when a cell of a notebook runs again. Keys of small seeds are not secret: they warn, and may be used
again.

Each leaf gets its own key at each step. With 64 bits, some two of n such keys are equal with
probability n**2 / 2**65: 1e-5 for 100,000 steps of 200 leaves. Moreover, the child keys of a
threefry key (`split`, `fold_in`) are part of its random bits, so do not draw from a key whose
children are in use. ChaCha20 has neither problem.
"""

import dataclasses
import hashlib
import os
import threading
import warnings
import weakref
from typing import Any

import jax
import numpy as np

from bevel.checks import one_of, shown
from bevel.errors import FixArgumentsError
from bevel.noise_addition.chacha20 import CHACHA20 as CHACHA20

WORDS = {"chacha20": 8, "threefry2x32": 2}


@dataclasses.dataclass(frozen=True)
class NoiseKey:
    """The key of a privatizer, whether it is secret, and its generator.

    The key is not shown. It is not compared either: compiled programs take it as an argument.
    """

    key: jax.Array = dataclasses.field(repr=False, compare=False)
    secret: bool
    generator: str
    # Identifies the privatizer, as long as it exists. None for a key that may be used again.
    owner: "_KeyOwner | None" = dataclasses.field(repr=False, compare=False)

    def without_owner(self) -> "NoiseKey":
        """For compiled programs, which may outlive the privatizer."""
        return dataclasses.replace(self, owner=None)


class _KeyOwner:
    """What a privatizer holds while it exists."""

    has_drawn = False  # from its own key, which is then checked no more


def new_key(generator: str = "chacha20") -> jax.Array:
    """Returns a key from the operating system's entropy.

    In a multi-process run, all processes must call this together. They get the same key, which the
    first process draws and sends to the others through JAX.

    Args:
      generator: 'chacha20' (256 bits) or 'threefry2x32' (64 bits).
    """
    one_of("generator", generator, tuple(WORDS))
    key_data = np.frombuffer(os.urandom(4 * WORDS[generator]), np.uint32)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        key_data = np.asarray(multihost_utils.broadcast_one_to_all(key_data))
    return wrapped(key_data, generator)


def wrapped(key_data: Any, generator: str) -> jax.Array:
    """Returns the key with this key data."""
    impl: Any = CHACHA20 if generator == "chacha20" else generator
    return jax.random.wrap_key_data(key_data, impl=impl)


def noise_key(prng_key: jax.Array | int | None) -> NoiseKey:
    """Checks the `prng_key` argument of a privatizer.

    None draws a new ChaCha20 key. An integer is a seed for tests. Anyone can guess it, so the key
    is recorded as not secret; the same holds for `jax.random.key(5)`, which warns, because it does
    not look like a seed for tests. A typed key is used with its own generator.
    """
    if prng_key is None:
        return NoiseKey(new_key(), secret=True, generator="chacha20", owner=_KeyOwner())
    if isinstance(prng_key, int | np.integer) and not isinstance(prng_key, bool | np.timedelta64):
        return NoiseKey(seed_key(int(prng_key)), secret=False, generator="chacha20", owner=None)
    key: Any = prng_key
    generator = checked_generator(key)
    if _is_a_seed(key, generator):
        _warn_of_seed()
        return NoiseKey(key, secret=False, generator=generator, owner=None)
    return NoiseKey(key, secret=True, generator=generator, owner=_KeyOwner())


def _warn_of_seed() -> None:
    warnings.warn(
        "For real data, leave prng_key out or pass bevel.noise_addition.keys.new_key(): this key "
        "is that of a small seed, which anyone can guess, and is recorded as not secret. For "
        "tests, pass the seed itself, prng_key=5.",
        stacklevel=5,
    )


def seed_key(seed: int) -> jax.Array:
    """Returns the ChaCha20 key of a 64-bit seed, of which `jax.random.key` might keep only 32."""
    if not 0 <= seed < 2**64:
        raise FixArgumentsError(
            f"prng_key={shown(seed)}: pass a seed from 0 to 2**64 - 1, or a key."
        )
    key_data = np.zeros(WORDS["chacha20"], np.uint32)
    key_data[:2] = seed % 2**32, seed >> 32
    return wrapped(key_data, "chacha20")


def _is_a_seed(key: jax.Array, generator: str) -> bool:
    """Returns whether a key looks like the key of a small integer.

    The threefry key `jax.random.key(n)` is (0, n), and `seed_key(n)` is zero from the third word
    on. One in 2**32 threefry keys from entropy looks like this.
    """
    if isinstance(key, jax.core.Tracer):
        return False
    words = _words(key)
    return not (words[:1] if generator == "threefry2x32" else words[2:]).any()


def _words(key: jax.Array) -> np.ndarray:
    with jax.ensure_compile_time_eval():  # while a function is traced, too
        return np.asarray(jax.random.key_data(key))


def checked_generator(key: Any) -> str:
    """Returns the generator of a typed key; raises unless `key` is one supported key."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        hint = ""
        if dtype == np.uint32:
            hint = " It looks like a legacy key: convert it by jax.random.wrap_key_data(prng_key)."
        raise FixArgumentsError(
            f"prng_key is {type(key).__name__} of dtype {dtype}, not a typed key.{hint} Pass "
            "bevel.noise_addition.keys.new_key(), jax.random.key(...), or leave it out."
        )
    if key.shape:
        raise FixArgumentsError(
            f"prng_key has shape {key.shape}: pass a single key, such as prng_key[0]."
        )
    impl = jax.random.key_impl(key)
    name = "chacha20" if impl == CHACHA20 else str(impl)
    if name not in WORDS:
        raise FixArgumentsError(
            f"prng_key is for the generator {name!r}, which cannot draw the numbers of one shard "
            f"alone. Use a {' or '.join(WORDS)} key, such as bevel.noise_addition.keys.new_key()."
        )
    return name


# The privatizer that draws from each key, in this process. Only salted hashes of keys are stored.

_salt = os.urandom(32)
_claimed: dict[bytes, "weakref.ref[_KeyOwner]"] = {}
_lock = threading.Lock()


def _digest(key: jax.Array) -> bytes:
    return hashlib.blake2b(_words(key).tobytes(), key=_salt).digest()


def claim(noise: NoiseKey, key: jax.Array) -> None:
    """Reserves a key for the privatizer that draws from it; raises if another one does.

    Warns if another one did, but is gone. Traced keys cannot be checked. The keys of small seeds,
    and those of a privatizer made from one, are not checked.
    """
    if noise.owner is None or isinstance(key, jax.core.Tracer):
        return
    own = key is noise.key
    if own and noise.owner.has_drawn:
        return
    if not own and _is_a_seed(key, noise.generator):
        _warn_of_seed()
        return
    digest = _digest(key)
    with _lock:
        known = _claimed.get(digest)
        owner = noise.owner if known is None else known()
        if known is None or owner is None:
            _claimed[digest] = weakref.ref(noise.owner)
    if owner in (None, noise.owner):
        noise.owner.has_drawn |= own
    if owner is None:
        warnings.warn(
            "Pass a new key, prng_key=bevel.noise_addition.keys.new_key(), unless this repeats a "
            "computation on the same data: a privatizer that no longer exists has drawn noise from "
            "this prng_key. The difference of two outputs with the same noise reveals the data.",
            stacklevel=4,
        )
    elif owner is not noise.owner:
        raise FixArgumentsError(
            "pass prng_key=bevel.noise_addition.keys.new_key(), or leave it out: another "
            "privatizer of this process already uses this prng_key. If both add the same noise, "
            "the difference of their outputs reveals the data. If this privatizer resumes the run "
            "of the other one, first call bevel.noise_addition.keys.release(prng_key)."
        )


def release(prng_key: jax.Array) -> None:
    """Unlocks a key, so that one more privatizer of this process may use it.

    Use it to resume a run in the same process: after an error in a notebook, or on another mesh.
    The new privatizer must continue from the old one's state, or repeat its steps on the same data.
    """
    checked_generator(prng_key)
    with _lock:
        _claimed.pop(_digest(prng_key), None)
