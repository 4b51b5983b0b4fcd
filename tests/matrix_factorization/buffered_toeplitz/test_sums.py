"""Geometric sums, compared with exact fractions near and at a ratio of 1."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest

from bevel.matrix_factorization.buffered_toeplitz import geometric_sum
from bevel.matrix_factorization.buffered_toeplitz.sums import pair_sums

RATIOS = [0.0, 1e-9, 0.3, 0.4999, 0.5, 0.75, 0.999, 1 - 1e-9, 1 - 1e-13, 1.0]


def exact_sum(r, num):
    r = Fraction(r)
    return float(num if r == 1 else (1 - r**num) / (1 - r))


@pytest.mark.parametrize("num", [0, 1, 2, 3, 17])
def test_sums_of_few_terms(num):
    got = geometric_sum(3.0, np.array(RATIOS), num)
    np.testing.assert_allclose(got, [3 * exact_sum(r, num) for r in RATIOS], rtol=1e-14)


@pytest.mark.parametrize("num", [10**3, 10**6])
def test_sums_of_many_terms(num):
    for r in (0.999, 1 - 1e-6, 1 - 1e-9, 1 - 1e-13, 1.0):
        expected = math.fsum(r ** np.arange(num, dtype=float))
        np.testing.assert_allclose(geometric_sum(1.0, r, num), expected, rtol=1e-12)


def test_infinite_sums():
    got = geometric_sum(np.array([2.0, 2.0, 2.0]), np.array([0.0, 0.75, 1.0]))
    np.testing.assert_array_equal(got, [2, 8, np.inf])
    assert geometric_sum(1.0, 1.5) == np.inf


def test_shapes_are_broadcast():
    got = geometric_sum(np.ones((2, 1)), np.full(3, 0.5), np.array([[2.0], [3.0]]))
    np.testing.assert_array_equal(got, [[1.5] * 3, [1.75] * 3])


@pytest.mark.parametrize("num", [5, 1000])
def test_derivatives_near_one(num):
    with jax.enable_x64(True):
        derivative = jax.jit(jax.grad(lambda r: geometric_sum(1.0, r, num)))
        for r in (0.0, 0.2, 0.7, 0.9, 1 - 1e-5, 1 - 1e-10, 1.0):
            got = derivative(r)
            k = np.arange(1, num)
            expected = float(np.sum(k * r ** (k - 1.0)))
            np.testing.assert_allclose(got, expected, rtol=1e-5)


def sums_by_definition(theta1, theta2, n):
    s1, s2 = (np.array([exact_sum(theta, t) for t in range(n)]) for theta in (theta1, theta2))
    terms = [np.ones(n), s1, s2, s1 * s2]
    return [x.sum() for x in terms], [np.cumsum(x).sum() for x in terms]


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_pair_sums(n):
    thetas = np.array([0.0, 0.5, 1 - 1e-12, 1.0])
    got = pair_sums(thetas[:, None], thetas[None, :], n)
    with jax.enable_x64(True):
        traced = jax.jit(pair_sums, static_argnums=2)(thetas[:, None], thetas[None, :], n)
        counted = jax.jit(pair_sums)(thetas[:, None], thetas[None, :], n)
    for i, theta1 in enumerate(thetas):
        for j, theta2 in enumerate(thetas):
            for sums in (got, traced, counted):
                once, twice = sums_by_definition(theta1, theta2, n)
                np.testing.assert_allclose([x[i, j] for x in sums.once], once, rtol=1e-13)
                np.testing.assert_allclose([x[i, j] for x in sums.twice], twice, rtol=1e-13)


def test_pair_sums_of_many_terms():
    # At a ratio of 1, s[t] = t.
    n = 10**6
    once = pair_sums(1.0, 1.0, n).once
    np.testing.assert_allclose(once[1], n * (n - 1) / 2, rtol=1e-14)
    np.testing.assert_allclose(once[3], (n - 1) * n * (2 * n - 1) / 6, rtol=1e-13)
