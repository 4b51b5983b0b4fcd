"""Discrete Gaussian samples of NumPy, compared with the exact probabilities."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import bevel
from bevel.errors import FixArgumentsError
from bevel.experimental import discrete_gaussian
from bevel.experimental.discrete_gaussian import (
    sample_discrete_gaussian,
    sample_discrete_gaussian_pytree,
)


def goodness_of_fit(samples, sigma):
    """The p-value of a chi-square test against the exact probabilities."""
    reach = int(12 * sigma) + 4
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    expected = samples.size * weights / weights.sum()
    observed = np.array([np.sum(samples == value) for value in x])
    assert observed.sum() == samples.size
    # Values that are expected less than ten times are counted together.
    rare = expected < 10
    expected, observed = (
        np.append(counts[~rare], counts[rare].sum()) for counts in (expected, observed)
    )
    positive = expected > 1e-9
    assert not observed[~positive].any()
    return scipy.stats.chisquare(
        observed[positive], expected[positive] * observed.sum() / expected.sum()
    ).pvalue


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0, 1.5, 3.0, np.pi, 10.0])
def test_samples_have_the_exact_probabilities(sigma):
    samples = sample_discrete_gaussian(np.random.default_rng(1), sigma, 200_000)
    assert goodness_of_fit(samples, sigma) > 1e-3


@pytest.mark.parametrize("sigma", [0.7, 2.5])
def test_coins_that_need_more_bits_are_exact(monkeypatch, sigma):
    """With this margin, 52 bits decide almost no coin."""
    monkeypatch.setattr(discrete_gaussian, "MARGIN", 2.0)
    samples = sample_discrete_gaussian(np.random.default_rng(2), sigma, 3000)
    assert goodness_of_fit(samples, sigma) > 1e-3


def test_the_margin_does_not_change_the_decision(monkeypatch):
    """Both ways of deciding a coin compare the same uniform number with the same probability."""

    class Repeated:
        """A generator whose further bits do not matter for coins that 52 bits decide."""

        def __init__(self):
            self.rng = np.random.default_rng(3)
            self.uniform = self.rng.integers(2**52, size=500)

        def integers(self, high, size=None):
            return self.uniform if size == 500 else self.rng.integers(high, size=size)

    exponents = [Fraction(i, 100) for i in range(500)]
    values = np.array([float(x) for x in exponents])
    outcomes = []
    for margin in (discrete_gaussian.MARGIN, 2.0):
        monkeypatch.setattr(discrete_gaussian, "MARGIN", margin)
        outcomes.append(discrete_gaussian.coins(Repeated(), values, exponents.__getitem__))
    np.testing.assert_array_equal(*outcomes)
    assert 0 < outcomes[0].sum() < 500


@pytest.mark.parametrize("sigma", [1e5, 2.0**50])
def test_a_large_sigma_is_the_standard_deviation(sigma):
    samples = sample_discrete_gaussian(np.random.default_rng(4), sigma, 100_000) / sigma
    assert samples.std() == pytest.approx(1, abs=0.01)
    assert samples.mean() == pytest.approx(0, abs=0.015)
    assert scipy.stats.kstest(samples, "norm").pvalue > 1e-3


@pytest.mark.parametrize("sigma", [0, 0.0, 1e-200, 5e-324])
def test_without_noise_samples_are_zero(sigma):
    samples = sample_discrete_gaussian(np.random.default_rng(5), sigma, 1000)
    assert samples.shape == (1000,) and not samples.any()


@pytest.mark.parametrize("oversample", [None, 1, 2, 50])
@pytest.mark.parametrize("size", [0, 1, 7, (2, 3), ()])
def test_shapes_do_not_depend_on_oversampling(oversample, size):
    samples = sample_discrete_gaussian(np.random.default_rng(6), 2.0, size, oversample)
    assert samples.shape == (size if isinstance(size, tuple) else (size,))
    assert samples.dtype == np.int64


def test_oversampling_keeps_the_distribution():
    samples = sample_discrete_gaussian(np.random.default_rng(7), 1.2, 100_000, oversample=9)
    assert goodness_of_fit(samples, 1.2) > 1e-3


@pytest.mark.parametrize("dtype", [np.int8, np.int32, "int64"])
def test_dtypes(dtype):
    rngs = [np.random.default_rng(8) for _ in range(2)]
    samples = sample_discrete_gaussian(rngs[0], 0.9, 100, dtype=dtype)
    assert samples.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(samples, sample_discrete_gaussian(rngs[1], 0.9, 100))


def test_trees_have_their_shapes_and_independent_samples():
    tree = {"w": jnp.ones((50, 40)), "b": [np.zeros(2000), jax.ShapeDtypeStruct((), "float32")]}
    noise = sample_discrete_gaussian_pytree(np.random.default_rng(9), 3.0, tree, dtype=np.int32)
    assert jax.tree.structure(noise) == jax.tree.structure(tree)
    assert jax.tree.map(np.shape, noise) == {"w": (50, 40), "b": [(2000,), ()]}
    assert all(leaf.dtype == np.int32 for leaf in jax.tree.leaves(noise))
    correlation = np.corrcoef(noise["w"].ravel(), noise["b"][0])[0, 1]
    assert abs(correlation) < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 1.0, 3), "rng is a NoneType"),
        ((0, 1.0, 3), "rng is a int"),
        (("rng", -1.0, 3), "sigma=-1.0"),
        (("rng", np.nan, 3), "sigma=nan"),
        (("rng", np.inf, 3), "sigma=inf"),
        (("rng", "1", 3), "sigma='1'"),
        (("rng", 1.0, -3), "size=-3"),
        (("rng", 1.0, 2.5), "size=2.5"),
        (("rng", 1.0, 3, 0), "oversample=0"),
        (("rng", 1.0, 3, None, np.float32), "dtype=float32"),
        (("rng", 1.0, 3, None, np.uint8), "dtype=uint8"),
        (("rng", 10.0, 3, None, np.int8), "dtype=int8 cannot hold"),
        (("rng", 1e19, 3), "dtype=int64 cannot hold"),
    ],
)
def test_bad_input_is_rejected(arguments, message):
    rng = np.random.default_rng(0) if arguments[0] == "rng" else arguments[0]
    with pytest.raises(FixArgumentsError, match=message):
        sample_discrete_gaussian(rng, *arguments[1:])


def test_the_name_of_jax_privacy():
    assert bevel.experimental.discrete_gaussian is discrete_gaussian
