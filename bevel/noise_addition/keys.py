"""Where the randomness of noise comes from: keys, and the generators that stretch them.

| generator      | key      | what it is                                                     |
| -------------- | -------- | -------------------------------------------------------------- |
| `CHACHA20`     | 256 bits | a stream cipher, for noise that must withstand an adversary    |
| threefry (JAX) | 64 bits  | JAX's own generator, faster, with a key that can be searched   |

A key is a secret. Who knows it can take the noise off again, so it must not reach a checkpoint, a
log or the compiled program of others. One key serves one privatizer of one run: two mechanisms
with the same noise can be subtracted from one another.

Two leaves of two steps have keys of their own. With 64 bits, two of n such keys are the same with
probability n**2 / 2**65: 1e-5 for 100,000 steps of 200 leaves. And JAX's threefry gives child keys
as bits of their parent: a key whose children (`split`, `fold_in`) are in use must not draw itself.
ChaCha20 has neither edge.
"""

import dataclasses
import hashlib
import os
import threading
from typing import Any

import jax
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.noise_addition.chacha20 import CHACHA20 as CHACHA20

WORDS = {"chacha20": 8, "threefry2x32": 2}


@dataclasses.dataclass(frozen=True)
class NoiseKey:
    """The key of a privatizer, whether it is secret, and the generator that it is for.

    Neither shown nor compared: programs take the key as an argument, and serve all keys.
    """

    key: jax.Array = dataclasses.field(repr=False, compare=False)
    secret: bool
    generator: str
    # Stands for the privatizer. None: its key is a seed for tests, and may be used again.
    owner: object | None = dataclasses.field(repr=False, compare=False)


def new_key(generator: str = "chacha20") -> jax.Array:
    """A key from the operating system's entropy.

    Args:
      generator: 'chacha20' (256 bits) or 'threefry2x32' (64 bits).

    In a run of several processes all of them must call this together: they get one key, drawn by
    the first process and sent to the others over JAX's own connections.
    """
    if generator not in WORDS:
        raise FixArgumentsError(f"generator={generator!r}: give one of {', '.join(WORDS)}.")
    words = np.frombuffer(os.urandom(4 * WORDS[generator]), np.uint32)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        words = np.asarray(multihost_utils.broadcast_one_to_all(words))
    return wrapped(words, generator)


def wrapped(words: Any, generator: str) -> jax.Array:
    """The key that consists of these words."""
    impl: Any = CHACHA20 if generator == "chacha20" else generator
    return jax.random.wrap_key_data(words, impl=impl)


def noise_key(prng_key: jax.Array | int | None) -> NoiseKey:
    """A privatizer's `prng_key` argument, checked.

    None draws a new ChaCha20 key. An integer is a seed for tests: everyone can guess it, so the key
    is recorded as not secret, and so is `jax.random.key(5)`. A typed key is used with its own
    generator.
    """
    if prng_key is None:
        return NoiseKey(new_key(), secret=True, generator="chacha20", owner=object())
    if isinstance(prng_key, int | np.integer) and type(prng_key) is not bool:
        return NoiseKey(seed_key(int(prng_key)), secret=False, generator="chacha20", owner=None)
    key: Any = prng_key
    generator = checked_generator(key)
    return NoiseKey(key, not _is_a_seed(key, generator), generator, owner=object())


def seed_key(seed: int) -> jax.Array:
    """The ChaCha20 key of an integer of up to 64 bits. `jax.random.key` would keep 32 of them."""
    if not 0 <= seed < 2**64:
        raise FixArgumentsError(f"prng_key={seed}: give a seed from 0 to 2**64 - 1, or a key.")
    words = np.zeros(WORDS["chacha20"], np.uint32)
    words[:2] = seed % 2**32, seed >> 32
    return wrapped(words, "chacha20")


def _is_a_seed(key: jax.Array, generator: str) -> bool:
    """Whether a key is that of a small integer, as far as can be seen.

    `jax.random.key(n)` of threefry is (0, n). A key from entropy looks so once in 2**32.
    """
    if generator != "threefry2x32" or isinstance(key, jax.core.Tracer):
        return False
    return not np.asarray(jax.random.key_data(key))[0]


def checked_generator(key: Any) -> str:
    """The name of a typed key's generator; raises for anything that is not one key."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        hint = ""
        if dtype == np.uint32:
            hint = " It looks like a legacy key: jax.random.wrap_key_data(prng_key) makes it one."
        raise FixArgumentsError(
            f"prng_key is {type(key).__name__} of dtype {dtype}, not a typed key.{hint} Pass "
            "bevel.noise_addition.keys.new_key(), jax.random.key(...), or leave it out."
        )
    if key.shape:
        raise FixArgumentsError(
            f"prng_key has shape {key.shape}: give one key, such as prng_key[0]."
        )
    impl = jax.random.key_impl(key)
    name = "chacha20" if impl == CHACHA20 else str(impl)
    if name not in WORDS:
        raise FixArgumentsError(
            f"prng_key is for the generator {name!r}, which cannot draw the numbers of one shard "
            f"alone. Use {' or '.join(WORDS)}: bevel.noise_addition.keys.new_key()."
        )
    return name


# Which keys have been given to which privatizer of this process. Only salted hashes are kept.

_salt = os.urandom(32)
_claimed: dict[bytes, object] = {}
_lock = threading.Lock()


def _digest(key: jax.Array) -> bytes:
    words = np.asarray(jax.random.key_data(key))
    return hashlib.blake2b(words.tobytes(), key=_salt).digest()


def claim(noise: NoiseKey, key: jax.Array) -> None:
    """Marks a key as one privatizer's; raises if it is another's.

    Traced keys cannot be followed, and those of a privatizer with a seed for tests are not.
    """
    if noise.owner is None or isinstance(key, jax.core.Tracer):
        return
    mark = _digest(key)
    with _lock:
        if _claimed.setdefault(mark, noise.owner) is not noise.owner:
            raise FixArgumentsError(
                "this prng_key already drives another privatizer of this process. Two mechanisms "
                "with the same noise void the guarantee of both: who subtracts their outputs has "
                "the data. Give each its own bevel.noise_addition.keys.new_key(), or each one of "
                "jax.random.split(prng_key), and prng_key itself to none. If the earlier "
                "privatizer is gone and this one takes over at its step, call "
                "bevel.noise_addition.keys.release(prng_key) first."
            )


def release(prng_key: jax.Array) -> None:
    """Lets a key be given to one more privatizer of this process.

    For a run that is taken up again: after an error in a notebook, or on another mesh. The new
    privatizer must continue from the old one's state, or repeat its steps on the same data.
    """
    checked_generator(prng_key)
    with _lock:
        _claimed.pop(_digest(prng_key), None)
