"""SipHash-1-3 of many 64-bit words at once: the keyed pseudorandom function of the samplers.

SipHash (Aumasson and Bernstein, 2012, https://www.aumasson.jp/siphash/siphash.pdf) is designed as a
pseudorandom function: without the 128-bit key, its values cannot be told from independent uniform
ones by any known attack. The form with one round per word and three final rounds is the one that
Python and Rust use for their hash tables.
"""

from collections.abc import Iterator

import numpy as np

_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_LENGTH = 8 << 56  # the last block of an 8-byte message: its length in the top byte
_CHUNK = 8192  # words that are hashed together, so that the state stays in the processor's cache


def siphash(words: np.ndarray, key: bytes, rounds: tuple[int, int] = (1, 3)) -> np.ndarray:
    """Returns the hash of each word, a message of 8 bytes, under a key of 16 bytes.

    Takes about 50 ns a word, and 0.1 ms for a few words. Both arrays are uint64.
    """
    flat = np.ascontiguousarray(words, np.uint64).ravel()
    hashed = np.empty_like(flat)
    for chunk in chunks(len(flat)):
        hashed[chunk] = _hash(flat[chunk], key, *rounds)
    return hashed.reshape(np.shape(words))


def chunks(length: int) -> Iterator[slice]:
    """Slices of `_CHUNK` elements that cover an array."""
    return (slice(start, start + _CHUNK) for start in range(0, length, _CHUNK))


def _hash(words: np.ndarray, key: bytes, per_word: int, final: int) -> np.ndarray:
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    keyed = zip(_INITIAL, (k0, k1, k0, k1), strict=True)
    a, b, c, d = (np.full_like(words, constant ^ half) for constant, half in keyed)
    scratch = np.empty_like(words)
    for block in (words, np.uint64(_LENGTH)):
        d ^= block
        for _ in range(per_word):
            _mix(a, b, c, d, scratch)
        a ^= block
    c ^= np.uint64(0xFF)
    for _ in range(final):
        _mix(a, b, c, d, scratch)
    return a ^ b ^ c ^ d


def _mix(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, scratch: np.ndarray) -> None:
    """One SipRound, in place."""
    a += b
    _rotate(b, 13, scratch)
    b ^= a
    _rotate(a, 32, scratch)
    c += d
    _rotate(d, 16, scratch)
    d ^= c
    a += d
    _rotate(d, 21, scratch)
    d ^= a
    c += b
    _rotate(b, 17, scratch)
    b ^= c
    _rotate(c, 32, scratch)


def _rotate(x: np.ndarray, bits: int, scratch: np.ndarray) -> None:
    np.left_shift(x, np.uint64(bits), out=scratch)
    np.right_shift(x, np.uint64(64 - bits), out=x)
    np.bitwise_or(x, scratch, out=x)
