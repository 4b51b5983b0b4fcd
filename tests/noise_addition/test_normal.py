"""Normals from 64 bits: extreme values, and the accuracy of the quantile everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from bevel.noise_addition.keys import CHACHA20
from bevel.noise_addition.normal import RandomNumbers, normal_from_bits, random_bits
from bevel.sharding.shard_generation import Shard

TOP = 2**63 - 1
CHOSEN = [0, 1, 2, 3, 2**31, 2**32 - 1, 2**32, 2**40, 2**62 - 1, 2**62, 2**62 + 1, TOP - 1, TOP]


def from_integers(m, sign=0, dtype=np.float32):
    bits = np.asarray(m, np.uint64) | np.uint64(sign << 63)
    words = (bits >> np.uint64(32)).astype(np.uint32), bits.astype(np.uint32)
    return np.asarray(NORMALS(words, dtype), np.float64)


NORMALS = jax.jit(normal_from_bits, static_argnums=1)


def quantiles(m):
    """Quantiles in float64, from the tail or from the middle, whichever is exact."""
    m = np.asarray(m, np.uint64)
    tail = (m.astype(np.float64) + 0.5) / 2**64
    within = ((np.uint64(TOP) - m).astype(np.float64) + 0.5) / 2**63
    near = np.sqrt(2) * scipy.special.erfinv(within)
    return np.where(within < 0.5, near, -scipy.special.ndtri(tail))


def spread_integers():
    rng = np.random.default_rng(0)
    logarithmic = (2.0 ** rng.uniform(0, 63, 4000)).astype(np.uint64)
    uniform = rng.integers(0, 2**63, 4000, dtype=np.uint64)
    return np.concatenate([np.array(CHOSEN, np.uint64), logarithmic, TOP - logarithmic, uniform])


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 5e-7), (np.float64, 1e-14)])
def test_every_quantile_has_its_full_relative_precision(dtype, tolerance):
    m = spread_integers()
    with jax.enable_x64(dtype == np.float64):
        for sign, factor in ((0, 1), (1, -1)):
            got = from_integers(m, sign, dtype)
            np.testing.assert_allclose(got, factor * quantiles(m), rtol=tolerance)


def test_support_goes_beyond_eight_sigma():
    # P[|z| > 8] is 2**-49.5, so 14 of the 63 bits are free there; all give different normals.
    extremes = from_integers([0, 2**13, 2**14])
    np.testing.assert_allclose(extremes, [9.155, 8.046, 7.96], atol=1e-2)
    np.testing.assert_array_equal(from_integers([0, 2**13, 2**14], sign=1), -extremes)
    assert len(np.unique(from_integers(np.arange(64)))) == 64


def test_zero_is_approached_without_steps():
    nearest = from_integers([TOP, TOP - 1, TOP - 2])
    np.testing.assert_allclose(nearest, np.sqrt(np.pi / 2) * np.array([1, 3, 5]) * 2.0**-64, 5e-7)
    # Around zero, jax.random.normal has steps of 1e-7.
    close = from_integers(TOP - (np.arange(64, dtype=np.uint64) << np.uint64(30)))
    assert len(np.unique(close)) == 64 and close.max() < 1e-8


def test_a_larger_integer_is_never_a_larger_normal():
    m = np.unique(spread_integers())
    z = from_integers(m)
    assert np.all(np.diff(z) <= 4e-7 * z[1:])


def as_integer(bits, dtype):
    """The 64 bits as one integer."""
    high, low = (x.astype(np.uint64) for x in bits)
    return ((high << np.uint64(32)) | low).astype(dtype)


@pytest.mark.parametrize("generator", ["chacha20", "threefry2x32"])
@pytest.mark.parametrize(
    "shape, parts", [((3, 5), (1, 5)), ((64,), (8,)), ((4, 16), (2, 2)), ((), ())]
)
def test_numbers_are_made_of_the_bits_of_jax_random(generator, shape, parts):
    key = jax.random.key(7, impl=CHACHA20 if generator == "chacha20" else generator)
    words = jax.random.key_data(key)
    with jax.enable_x64(True):
        make = RandomNumbers(generator, as_integer, np.dtype(np.uint64))
        expected = np.asarray(jax.random.bits(key, shape, np.uint64))
        own = tuple(n // p for n, p in zip(shape, parts, strict=True))
        last = tuple(np.uint32(n - s) for n, s in zip(shape, own, strict=True))
        for shard in (Shard.all_of(shape), Shard(own, shape, last)):
            (found,) = jax.jit(make, static_argnums=1)(words, shard)
            rest = tuple(slice(int(start), None) for start in shard.starts)
            np.testing.assert_array_equal(found, expected[rest])


@pytest.mark.parametrize("generator", ["chacha20", "threefry2x32"])
def test_normals_are_standard_normals(generator):
    impl = CHACHA20 if generator == "chacha20" else generator
    words = jax.random.key_data(jax.random.key(11, impl=impl))
    bits = jax.jit(lambda words: random_bits(generator, words, Shard.all_of((100_000,))))(words)
    z = np.asarray(NORMALS(bits, np.float32), np.float64)
    assert scipy.stats.kstest(z, "norm").pvalue > 1e-3
    for wrong in (0.67, 1.5, 0.97, 1.03):
        assert scipy.stats.kstest(wrong * z, "norm").pvalue < 1e-3
    for moment, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(z**moment) - expected) < 4 * np.sqrt(spread / z.size)


def test_every_bit_of_the_words_is_used():
    rng = np.random.default_rng(1)
    m = rng.integers(0, 2**64, 256, dtype=np.uint64)
    with jax.enable_x64(True):
        base = from_integers(m, dtype=np.float64)
        changed = [
            np.any(from_integers(m ^ np.uint64(1 << bit), dtype=np.float64) != base)
            for bit in range(64)
        ]
    assert np.sum(changed) == 64


@pytest.mark.parametrize("generator", ["chacha20", "threefry2x32"])
def test_large_leaves_do_not_repeat(generator):
    # Offsets that differ by 2**32, in an array of 2**37 elements.
    impl = CHACHA20 if generator == "chacha20" else generator
    words = jax.random.key_data(jax.random.key(3, impl=impl))

    @jax.jit
    def of_row(row):
        shard = Shard((1, 8), (2**17, 2**20), (row, np.uint32(0)))
        return jnp.stack(random_bits(generator, words, shard))

    assert not np.any(of_row(np.uint32(0)) == of_row(np.uint32(2**12)))
