"""Sizes of convolutions, and the flat layout in which a kernel offset is a slice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bevel.clipping.norms.convolution_geometry import ConvolutionGeometry, ImageLayout


def geometry_of(lhs, rhs, **options):
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (lhs, rhs)]
    fun = lambda x, w: lax.conv_general_dilated(x, w, **options)  # noqa: E731
    (eqn,) = jax.make_jaxpr(fun)(*types).eqns
    return ConvolutionGeometry.of(eqn.params, lhs, rhs, eqn.outvars[0].aval.shape)


STRIDED = {
    "window_strides": (2, 1),
    "padding": [(1, 1), (-1, 2)],
    "lhs_dilation": (1, 2),
    "rhs_dilation": (2, 1),
    "dimension_numbers": ("NCHW", "IOHW", "NHWC"),
    "feature_group_count": 2,
}


def test_geometry_reads_the_equation():
    geometry = geometry_of((3, 4, 9, 5), (2, 6, 3, 2), **STRIDED)
    assert (geometry.images, geometry.groups, geometry.channels, geometry.features) == (3, 2, 2, 3)
    assert geometry.kernel == (2, 6, 3, 2) and geometry.window == (3, 2)
    assert [d.size for d in geometry.dims] == [9, 5]
    assert [d.out for d in geometry.dims] == [4, 9]
    assert geometry.positions == 3 * 4 * 9 and geometry.pixels == 3 * 9 * 5
    assert not geometry.empty
    assert hash(geometry) == hash(geometry_of((3, 4, 9, 5), (2, 6, 3, 2), **STRIDED))


def test_image_and_cotangent_have_groups_last():
    geometry = geometry_of((3, 4, 9, 5), (2, 6, 3, 2), **STRIDED)
    x = np.arange(2 * 3 * 4 * 9 * 5).reshape(2, 3, 4, 9, 5)
    g = np.arange(2 * 3 * 4 * 9 * 6).reshape(2, 3, 4, 9, 6)
    image, cotangent = geometry.image(jnp.asarray(x)), geometry.cotangent(jnp.asarray(g))
    assert image.shape == (2, 3, 9, 5, 2, 2) and cotangent.shape == (2, 3, 4, 9, 2, 3)
    np.testing.assert_array_equal(image[1, 2, 3, 4, 1, 0], x[1, 2, 2, 3, 4])
    np.testing.assert_array_equal(cotangent[1, 2, 3, 4, 1, 0], g[1, 2, 3, 4, 3])


@pytest.mark.parametrize("stack", [0, 1, 2])
def test_a_place_of_the_layout_is_an_offset_of_the_window(stack):
    geometry = geometry_of((3, 4, 9, 5), (2, 6, 3, 2), **STRIDED)
    layout = ImageLayout(geometry, stack)
    x = np.random.default_rng(0).normal(size=(1, 3, 9, 5, 2, 2)).astype(np.float32)
    ones = jnp.ones((1, 3, 4, 9, 2, 1))
    flat, chosen = layout.image(jnp.asarray(x)), np.asarray(layout.cotangent(ones))[0, 0, :, 0]
    # Padded by hand: lows 1 and -1, columns dilated by two.
    padded = np.zeros((3, 12, 11, 2, 2), np.float32)
    padded[:, 1:10, 0:8:2] = 0
    padded[:, 1:10, 1:9:2] = x[0, :, :, 1:]
    assert chosen.sum() == geometry.positions and chosen.size == layout.length
    assert len(layout.places) * layout.width == 6
    offsets = [(i, j) for i in range(3) for j in range(2)]
    for n, (i, j) in enumerate(offsets):
        phase, shift = layout.places[n // layout.width]
        columns = slice(n % layout.width * 2, n % layout.width * 2 + 2)
        rows = flat[phase, 0, :, shift : shift + layout.length, columns][:, chosen == 1]
        expected = padded[:, 2 * i : 2 * i + 7 : 2, j : j + 9].reshape(-1, 2, 2)
        np.testing.assert_array_equal(rows, np.swapaxes(expected, 0, 1))


def test_batch_groups_are_refused():
    params = {"batch_group_count": 2}
    with pytest.raises(ValueError, match=r"batch_group_count=2 .* Materialise its gradients"):
        ConvolutionGeometry.of(params, (2, 4), (3, 4), (1, 4))
