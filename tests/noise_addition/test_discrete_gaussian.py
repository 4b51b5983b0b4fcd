"""The discrete Gaussian agrees with a plain sampler, has the exact law, and needs no collective."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from compare import FULL
from noise_layouts import LAYOUTS, generate_by_shard

from bevel.noise_addition import chacha20
from bevel.noise_addition.discrete_gaussian import LARGEST_SIGMA, DiscreteGaussians
from bevel.sharding.shard_generation import Shard


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


WORDS = np.arange(9, 17, dtype=np.uint32)


@functools.partial(jax.jit, static_argnums=1)
def samples(sigma, shape):
    return DiscreteGaussians(sigma)(jnp.asarray(WORDS), Shard.all_of(shape))[0]


# A plain sampler: one element at a time, with Python integers and fractions.


@functools.partial(jax.jit, static_argnums=1)
def streams(elements, blocks):
    """The draws of some elements: (elements, 8 * blocks), 64 bits each."""
    shape = (elements.size, blocks)
    low = jnp.broadcast_to(elements[:, None], shape)
    t = jax.lax.broadcasted_iota(np.uint32, shape, 1)
    counter = (jnp.zeros_like(low), low)
    block = chacha20.blocks(jnp.asarray(WORDS), counter, chacha20.BlockPurpose.DISCRETE, t)
    pairs = [
        (block[i + 1].astype(np.uint64) << 32) | block[i].astype(np.uint64) for i in range(0, 16, 2)
    ]
    return jnp.stack(pairs, axis=-1).reshape(elements.size, -1)


class Source:
    """Uniform integers from a stream of 64-bit draws."""

    def __init__(self, draws):
        self.draws = iter(draws)

    def below(self, n):
        while True:
            draw = int(next(self.draws))
            if draw < 2**64 - 2**64 % n:
                return draw % n

    def coin(self, p):
        """True with probability p, a numerator and a denominator, from one draw."""
        numerator, denominator = p
        return self.below(denominator) < numerator

    def exponential(self, a, b):
        """True with probability exp(-a / b), for a <= b."""
        i = 1
        while self.coin((a, b * i)):
            i += 1
        return i % 2 == 1


def plain_sample(sigma, source):
    while True:
        k = 0
        while source.exponential(1, 2):
            k += 1
        if not all(source.exponential(1, 2) for _ in range(k * (k - 1))):
            continue
        uniform = source.below(2 * sigma)
        j, negative = uniform // 2, uniform % 2
        if negative and j == 0 and k == 0:
            continue
        a, b = j * (2 * k * sigma + j), 2 * (k + 1) * sigma**2
        if all(source.exponential(a, b) for _ in range(k + 1)):
            size = k * sigma + j
            return -size if negative else size


@pytest.mark.parametrize("sigma", [1, 2, 7, 1000, LARGEST_SIGMA])
def test_samples_are_those_of_the_plain_sampler(sigma):
    got = samples(sigma, (150,))
    draws = np.asarray(streams(np.arange(150, dtype=np.uint32), 24))
    expected = [plain_sample(sigma, Source(row)) for row in draws]
    np.testing.assert_array_equal(got, expected)


def test_the_plain_sampler_has_the_right_weights():
    # exp(-k^2/2) exp(-u (2k + u) / 2) is exp(-x^2 / (2 sigma^2)), as exponents.
    for sigma in (1, 3, 10):
        for x in range(6 * sigma):
            k, j = divmod(x, sigma)
            a, b = j * (2 * k * sigma + j), 2 * (k + 1) * sigma**2
            exponent = Fraction(k, 2) + Fraction(k * (k - 1), 2) + (k + 1) * Fraction(a, b)
            assert exponent == Fraction(x**2, 2 * sigma**2)
            assert a <= b


def exact_probabilities(sigma, reach):
    weights = np.exp(-(np.arange(-300.0, 301.0) ** 2) / (2 * sigma**2))
    return (weights / weights.sum())[300 - reach : 301 + reach]


@pytest.mark.parametrize("sigma", [1, 5])
def test_the_law_is_the_discrete_gaussian(sigma):
    x = np.asarray(samples(sigma, (100_000,)))
    reach = 3 * sigma
    expected = exact_probabilities(sigma, reach) * x.size
    found = np.array([np.sum(x == v) for v in range(-reach, reach + 1)])
    rest = x.size - expected.sum(), x.size - found.sum()
    pvalue = scipy.stats.chisquare([*found, rest[1]], [*expected, rest[0]]).pvalue
    assert pvalue > 1e-3
    for other in (0.97 * sigma, 1.03 * sigma):
        wrong = exact_probabilities(other, reach) * x.size
        assert (
            scipy.stats.chisquare([*found, rest[1]], [*wrong, x.size - wrong.sum()]).pvalue < 1e-4
        )


def test_a_large_sigma_is_normal():
    x = np.asarray(samples(10_000, (100_000,)), np.float64) / 10_000
    assert scipy.stats.kstest(x, "norm").pvalue > 1e-3
    for wrong in (0.67, 1.5):
        assert scipy.stats.kstest(wrong * x, "norm").pvalue < 1e-9
    lagged = [np.mean(x[k:] * x[: x.size - k]) for k in (1, 2, 8, 4096)]
    assert np.max(np.abs(lagged)) < 5 / np.sqrt(x.size)


def test_the_number_of_lanes_does_not_matter():
    few, many = samples(7, (150,)), samples(7, (5000,))
    np.testing.assert_array_equal(few, many[:150])


def test_empty_shards():
    assert samples(7, (0, 3)).shape == (0, 3)


TREE = {"odd": np.ones((8, 12), np.int64)}
CHOSEN = ("auto-42", "explicit-42", "manual-42-unchecked", *(("manual-42",) if FULL else ()))


@pytest.mark.parametrize(
    "layout", [x for x in LAYOUTS if x.name in CHOSEN], ids=lambda layout: layout.name
)
def test_shards_sample_without_communication_and_agree(layout):
    def run(tree):
        x = tree["odd"]
        made = generate_by_shard(DiscreteGaussians(7), jnp.asarray(WORDS), x, layout.specs["odd"])
        return {"odd": x + made[0]}

    tree = layout.place(TREE)
    program = layout.compiled(run, tree)
    np.testing.assert_array_equal(program(tree)["odd"], 1 + samples(7, (8, 12)))
    for kind in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert f" {kind}" not in program.as_text()
