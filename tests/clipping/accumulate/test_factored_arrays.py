"""Powers of two that are taken out of arrays come back with the exponents of their leaves."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.clipping.accumulate.factored_arrays import FactoredArrays

rng = np.random.default_rng(0)
LEFT, RIGHT = (jnp.asarray(rng.normal(size=(3, n)), jnp.float32) for n in (4, 5))


def factored(values):
    """Leaves are trees, whose arrays are multiplied, or lists of such trees, which are added."""
    gradients = SimpleNamespace(values=values.__getitem__, by_slice=lambda leaf: False)
    return FactoredArrays.of(gradients, list(values))


def product(value):
    if isinstance(value, list):
        return sum(product(term) for term in value)
    arrays = [np.asarray(x, np.float64) for x in jax.tree.leaves(value)]
    if len(arrays) == 1:
        return arrays[0]
    return np.einsum("bi,bj->bij", *arrays)


def scaled(parts, padding=None, nan_safe=True):
    tops = parts.tops(parts.arrays)
    values = parts.values(parts.scaled(parts.arrays, tops, padding, nan_safe))
    return values, parts.exponents(tops), tops


@pytest.mark.parametrize("powers", [(0, 0), (70, 0), (-70, 90), (100, -80), (-60, -50)])
def test_gradients_are_the_scaled_ones_times_their_powers_of_two(powers):
    one, two = (x * 2.0**e for x, e in zip((LEFT, RIGHT), powers, strict=True))
    values = {0: (one, two), 1: one, 2: [(one, two), (LEFT, RIGHT)]}
    found, exponents, _ = scaled(factored(values))
    for leaf, value in values.items():
        assert all(float(jnp.max(jnp.abs(x))) < 2.0**30 for x in jax.tree.leaves(found[leaf]))
        got, expected = product(found[leaf]), product(value)
        powers_of_two = 2.0 ** np.asarray(exponents[leaf], np.float64)
        got = got * powers_of_two.reshape(-1, *(1,) * (got.ndim - 1))
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-30 * np.max(np.abs(expected)))


def test_arrays_in_range_keep_their_bits():
    found, exponents, _ = scaled(factored({0: (LEFT, RIGHT)}))
    assert not np.any(exponents[0])
    jax.tree.map(np.testing.assert_array_equal, found[0], (LEFT, RIGHT))


def test_an_array_that_several_leaves_read_is_held_once():
    parts = factored({0: (LEFT, RIGHT), 1: (LEFT, RIGHT + 1)})
    assert len(parts.arrays) == 3


def test_stacked_exponents_are_those_of_the_leaves():
    values = {0: (LEFT * 2.0**80, RIGHT), 1: (LEFT, RIGHT * 2.0**-70), 2: RIGHT * jnp.inf}
    parts = factored(values)
    _, exponents, tops = scaled(parts)
    together, finite = parts.stacked([0, 1, 2], tops)
    for row, leaf in enumerate(values):
        np.testing.assert_array_equal(together[row], exponents[leaf])
    np.testing.assert_array_equal(finite.all(axis=1), [True, True, False])


@pytest.mark.parametrize("nan_safe", [True, False])
def test_what_is_not_finite_becomes_zero_if_asked_and_padding_always(nan_safe):
    value = LEFT.at[0, 1].set(jnp.nan).at[2, 0].set(jnp.inf)
    padding = jnp.array([False, False, True])
    found, _, _ = scaled(factored({0: value}), padding, nan_safe)
    np.testing.assert_array_equal(found[0][1], LEFT[1])
    np.testing.assert_array_equal(found[0][2], 0)
    assert bool(jnp.all(found[0][0] == 0)) == nan_safe
