"""SipHash equals the published test vector, and a slow implementation on Python's integers."""

import ast
import subprocess
import sys

import numpy as np
import pytest

from bevel.batch_selection.siphash import siphash

MASK = 2**64 - 1
KEY = bytes(range(16))


def slow(message, key, per_word, final):
    """SipHash of a bytes object, word by word, as the paper defines it."""
    k = [int.from_bytes(key[i : i + 8], "little") for i in (0, 8)]
    initial = b"somepseudorandomlygeneratedbytes"
    v = [int.from_bytes(initial[i : i + 8], "big") ^ k[i // 8 % 2] for i in range(0, 32, 8)]

    def rotated(x, bits):
        return (x << bits | x >> (64 - bits)) & MASK

    def mix():
        v[0] = (v[0] + v[1]) & MASK
        v[2] = (v[2] + v[3]) & MASK
        v[1] = rotated(v[1], 13) ^ v[0]
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] = rotated(v[0], 32)
        v[2] = (v[2] + v[1]) & MASK
        v[0] = (v[0] + v[3]) & MASK
        v[1] = rotated(v[1], 17) ^ v[2]
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] = rotated(v[2], 32)

    whole = len(message) // 8 * 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) % 256])
    words = [message[i : i + 8] for i in range(0, whole, 8)]
    for word in [*words, last]:
        number = int.from_bytes(word, "little")
        v[3] ^= number
        for _ in range(per_word):
            mix()
        v[0] ^= number
    v[2] ^= 0xFF
    for _ in range(final):
        mix()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_published_vector():
    word = np.frombuffer(bytes(range(8)), "<u8")
    assert siphash(word, KEY, rounds=(2, 4)).tolist() == [0x93F5F5799A932462]
    assert slow(bytes(range(8)), KEY, 2, 4) == 0x93F5F5799A932462
    assert slow(b"", KEY, 2, 4) == 0x726FDB47DD0E0E31


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="another hash of bytes")
def test_equals_the_hash_of_bytes_in_python():
    words = list(range(0, 2**64, 2**64 // 50))
    code = f"print([hash(word.to_bytes(8, 'little')) for word in {words}])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
        text=True,
    )
    number, key = 7, b""
    for _ in range(16):  # how Python makes a key of this seed: a linear congruential generator
        number = (number * 214013 + 2531011) % 2**32
        key += bytes([number >> 16 & 0xFF])
    assert siphash(np.array(words, np.uint64), key).view(np.int64).tolist() == ast.literal_eval(
        done.stdout
    )


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_one(seed):
    rng = np.random.default_rng(seed)
    key, words = rng.bytes(16), rng.integers(0, MASK, 20, np.uint64, endpoint=True)
    assert siphash(words, key).tolist() == [slow(w.tobytes(), key, 1, 3) for w in words]


def test_every_word_is_hashed_alone():
    words = np.arange(20_000)  # more than are hashed together
    hashed = siphash(words, KEY)
    assert hashed.dtype == np.uint64 and len(np.unique(hashed)) == len(words)
    assert np.array_equal(hashed[8000:8400], siphash(words[8000:8400], KEY))
    assert np.array_equal(siphash(words.reshape(100, 2, 100), KEY).ravel(), hashed)
    assert siphash(words[:0], KEY).shape == (0,)


def test_a_flipped_bit_of_key_or_word_flips_half_of_the_bits():
    words = np.arange(2000, dtype=np.uint64)
    other_key = bytes([KEY[0] ^ 1]) + KEY[1:]
    for other in (siphash(words ^ np.uint64(1), KEY), siphash(words, other_key)):
        flipped = np.bitwise_count(siphash(words, KEY) ^ other)
        assert abs(flipped.mean() - 32) < 0.5
