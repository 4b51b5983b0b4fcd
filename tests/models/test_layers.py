"""Layers against plain NumPy."""

import jax
import numpy as np

from bevel.models.layers import (
    affine,
    convolve,
    group_norm,
    layer_norm,
    norm_parameters,
    weights,
    zero_weights,
)

H = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype(np.float32)


def test_weights_keep_the_variance_of_their_inputs():
    layer = weights(jax.random.key(0), (3, 3, 50, 40))
    np.testing.assert_allclose(np.var(layer["w"]), 1 / 450, rtol=0.05)
    assert not np.any(layer["b"])


def test_a_zero_layer_has_equal_outputs():
    np.testing.assert_array_equal(affine(zero_weights((6, 3)), H), np.zeros((2, 4, 5, 3)))


def test_strides_halve_the_image_rounding_up():
    kernel = np.ones((3, 3, 6, 7), np.float32)
    assert convolve(kernel, H, 2).shape == (2, 2, 3, 7)


def test_group_norm_normalises_the_groups_of_each_example():
    layer = {name: value * 2.0 for name, value in norm_parameters(6).items()}
    actual = np.asarray(group_norm(layer, H, groups=3)).reshape(2, 20, 3, 2)
    np.testing.assert_allclose(actual.mean((1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(actual.std((1, 3)), 2, rtol=1e-3)


def test_layer_norm_normalises_the_last_axis():
    actual = np.asarray(layer_norm(norm_parameters(6), H))
    np.testing.assert_allclose(actual.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(actual.std(-1), 1, rtol=1e-2)
