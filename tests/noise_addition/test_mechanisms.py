"""Every mechanism of `matrix_factorization`, end to end: noise with the covariance C^-1 C^-T."""

import functools

import jax
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from noise_layouts import AUTO, threefry_key

from bevel.matrix_factorization import banded, buffered_toeplitz, dense, toeplitz, tree_aggregation
from bevel.noise_addition import SupportedStrategies, matrix_factorization_privatizer

STEPS, SAMPLES, STDDEV = 5, 100_000, 2.0


def lower_toeplitz(coefs):
    padded = np.zeros(STEPS)
    padded[: len(coefs)] = coefs[:STEPS]
    return scipy.linalg.toeplitz(padded, np.zeros(STEPS))


# (what a user passes, C as written out here): C comes from no code of the package that noise does.


def banded_toeplitz():
    coefs = np.array([1.0, 0.5, 0.3])
    return toeplitz.inverse_as_streaming_matrix(coefs), lower_toeplitz(coefs)


def banded_toeplitz_normalised():
    coefs = np.array([1.0, 0.5, 0.3])
    c = lower_toeplitz(coefs)
    noising = toeplitz.inverse_as_streaming_matrix(coefs, column_normalize_for_n=STEPS)
    return noising, c / np.linalg.norm(c, axis=0)


def column_normalised_banded():
    params = np.random.default_rng(0).uniform(0.2, 1.0, (STEPS, 3))
    c = np.zeros((STEPS, STEPS))
    for column, values in enumerate(params):
        kept = values[: STEPS - column]
        c[column : column + 3, column] = kept / np.linalg.norm(kept)
    return banded.ColumnNormalizedBanded(params).inverse_as_streaming_matrix(), c


def blt():
    decay, scale = np.array([0.9, 0.4]), np.array([0.3, 0.2])
    strategy = buffered_toeplitz.BufferedToeplitz.build(decay, scale)
    coefs = [1.0, *(np.sum(scale * decay**k) for k in range(STEPS - 1))]
    return strategy.inverse_as_streaming_matrix(), lower_toeplitz(coefs)


def bisr():
    coefs = toeplitz.banded_inverse_square_root_noising_coefs(3)
    np.testing.assert_allclose(coefs, [1, -0.5, -0.125], atol=1e-7)  # (1 - x)**(1/2)
    return toeplitz.as_streaming_matrix(coefs), np.linalg.inv(lower_toeplitz([1, -0.5, -0.125]))


def tree():
    nodes = tree_aggregation.strategy_matrix(STEPS)  # not square; a square root has its covariance
    return np.linalg.inv(dense.strategy_from_X(nodes.T @ nodes)), nodes


def best_dense():
    c = np.asarray(dense.optimize(STEPS), np.float64)
    return np.linalg.inv(c), c


MECHANISMS = [
    banded_toeplitz,
    banded_toeplitz_normalised,
    column_normalised_banded,
    blt,
    bisr,
    tree,
    best_dense,
]


@functools.cache
def noise(strategy):
    """By mechanism, STEPS rows of SAMPLES numbers; flat noise is split over 8 devices.

    All have the same key and one program, so that the compiler sees the draws once.
    """
    g = np.zeros(SAMPLES, np.float32)
    if strategy is SupportedStrategies.ZERO:
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AUTO,))
        g = jax.device_put(g, NamedSharding(mesh, P()))
    options = {"stddev": STDDEV, "intermediate_strategy": strategy}
    privatizers = {
        mechanism.__name__: matrix_factorization_privatizer(
            mechanism()[0], prng_key=threefry_key(5), **options
        )
        for mechanism in MECHANISMS
    }

    @jax.jit
    def step(states):
        both = {m: p.update(g, states[m]) for m, p in privatizers.items()}
        return {m: noised for m, (noised, _) in both.items()}, {m: s for m, (_, s) in both.items()}

    states, rows = {m: p.init(g) for m, p in privatizers.items()}, []
    for _ in range(STEPS):
        noised, states = step(states)
        rows.append(noised)
    return {m: np.stack([row[m] for row in rows]).astype(np.float64) for m in privatizers}


@pytest.mark.parametrize("strategy", SupportedStrategies, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_covariance_is_that_of_the_mechanism(mechanism, strategy):
    _, c = mechanism()
    expected = STDDEV**2 * np.linalg.inv(c.T @ c)
    found = np.cov(noise(strategy)[mechanism.__name__])
    variances = np.diagonal(expected)
    error = np.sqrt((np.outer(variances, variances) + expected**2) / SAMPLES)
    assert np.max(np.abs(found - expected) / error) < 5
    # The test can fail: independent noise, C in place of its inverse, and a scale of 1.03.
    for wrong in (STDDEV**2 * np.eye(STEPS), STDDEV**2 * c.T @ c, 1.03**2 * expected):
        assert np.max(np.abs(found - wrong) / error) > 8
