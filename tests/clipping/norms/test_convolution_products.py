"""Gradients of kernels, their norms and their sum, against float64 one example at a time."""

import functools
import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bevel import precision
from bevel.clipping.norms import convolution_products
from bevel.clipping.norms.convolution_geometry import ConvolutionGeometry

B = 2


def case(lhs, rhs, strides=(1, 1), padding="SAME", order="NHWC HWIO NHWC", groups=1, **dilations):
    options = {"dimension_numbers": tuple(order.split()), "feature_group_count": groups}
    return lhs, rhs, {"window_strides": strides, "padding": padding} | options | dilations


CASES = {
    "same": case((1, 5, 4, 3), (3, 3, 3, 4)),
    "valid": case((1, 5, 6, 3), (2, 3, 3, 4), padding="VALID"),
    "strides": case((1, 7, 6, 3), (3, 2, 3, 4), (2, 1)),
    "stride above window": case((1, 7, 8, 3), (2, 1, 3, 4), (3, 2), "VALID"),
    "disjoint windows": case((1, 6, 8, 2), (2, 4, 2, 3), (2, 4), "VALID"),
    "one by one": case((1, 4, 5, 3), (1, 1, 3, 4)),
    "one by one with stride": case((1, 4, 5, 3), (1, 1, 3, 4), (2, 2)),
    "padding": case((1, 4, 5, 2), (3, 2, 2, 3), (1, 2), [(0, 3), (2, 1)]),
    "negative padding": case((1, 7, 8, 2), (3, 2, 2, 3), (1, 2), [(-1, 2), (1, -3)]),
    "padding beyond the image": case((1, 2, 3, 2), (3, 2, 2, 3), (1, 1), [(7, -4), (4, 5)]),
    "window above image": case((1, 2, 3, 2), (3, 4, 2, 3)),
    "spread image": case((1, 3, 4, 2), (3, 2, 2, 3), padding=[(2, 2), (1, 0)], lhs_dilation=(2, 3)),
    "dilation": case((1, 7, 6, 2), (3, 2, 2, 3), rhs_dilation=(2, 3)),
    "everything": case(
        *((2, 6, 5, 4), (3, 2, 2, 6), (3, 2), [(2, -1), (3, 4)]),
        **{"groups": 2, "lhs_dilation": (2, 1), "rhs_dilation": (2, 3)},
    ),
    "groups": case((1, 4, 4, 6), (2, 3, 2, 6), groups=3),
    "depthwise": case((1, 4, 5, 3), (3, 2, 1, 3), groups=3),
    "depthwise, two each": case((1, 5, 5, 3), (3, 3, 1, 6), (2, 2), groups=3),
    "images": case((3, 4, 3, 2), (2, 3, 2, 3), (1, 2)),
    "channels first": case((2, 4, 5, 6), (6, 2, 3, 2), (2, 1), order="NCHW OIHW NCHW", groups=2),
    "odd order": case(
        (5, 4, 2, 6), (3, 6, 2, 2), (1, 2), [(1, 0), (2, 1)], "WCNH HOIW CHWN", groups=2
    ),
    "1-D": case((2, 9, 3), (4, 3, 5), (2,), order="NWC WIO NWC"),
    "3-D": case((1, 3, 4, 4, 2), (2, 2, 2, 2, 3), (1, 2, 1), order="NDHWC DHWIO NDHWC"),
    "long window": case((1, 60, 2), (55, 2, 2), (2,), order="NWC WIO NWC"),
    "no output": case((1, 2, 5, 2), (3, 3, 2, 2), padding="VALID"),
    "no images": case((0, 4, 5, 2), (3, 3, 2, 2)),
}


def convolution(case):
    return functools.partial(lax.conv_general_dilated, **case[2])


def equation(case, dtype="float32"):
    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in case[:2]]
    (eqn,) = jax.make_jaxpr(convolution(case))(*types).eqns
    return eqn, ConvolutionGeometry.of(eqn.params, *case[:2], eqn.outvars[0].aval.shape)


def draw(eqn, dtype="float32"):
    rng = np.random.default_rng(0)
    shapes = [v.aval.shape for v in (eqn.invars[0], eqn.outvars[0])]
    return [rng.normal(size=(B, *shape)).astype(jnp.dtype(dtype)) for shape in shapes]


def gradients(case, x, g):
    """The float64 gradients, and the sums of the absolute terms of each entry."""
    with jax.enable_x64(True):
        kernel = jax.ShapeDtypeStruct(case[1], jnp.float64)
        conv = convolution(case)
        pull = jax.jit(lambda x, g: jax.linear_transpose(lambda w: conv(x, w), kernel)(g)[0])
        pairs = list(zip(x.astype(np.float64), g.astype(np.float64), strict=True))
        found = [[pull(*pair) for pair in pairs], [pull(*map(np.abs, pair)) for pair in pairs]]
        return [np.stack([np.asarray(w) for w in each]) for each in found]


def gram_square(geometry, x, g):
    if geometry.empty:  # no rule accepts these
        return jnp.zeros(len(x))
    patches = convolution_products.patch_gram(geometry, x)
    return jnp.sum(patches * convolution_products.cotangent_gram(geometry, g), axis=(1, 2, 3))


def everything(eqn, geometry, x, g, stacks, squared):
    """Gradients for each of `stacks`, and norms, of which those by products use one stack."""
    return {
        "products": [convolution_products.per_example_products(geometry, x, g, s) for s in stacks],
        "squares": convolution_products.squared_norm_by_products(geometry, x, g, squared),
        "gram": gram_square(geometry, x, g),
        "lengths": [
            jnp.sqrt(convolution_products.patch_squares(geometry, x)),
            jnp.sqrt(jnp.sum(jnp.square(geometry.cotangent(g).astype(jnp.float32)), axis=-1)),
        ],
        "sum": convolution_products.weighted_sum(geometry, eqn.params, x, g),
        "sum by products": convolution_products.sum_by_products(geometry, x, g, squared),
    }


@functools.cache
def results(name, dtype):
    eqn, geometry = equation(CASES[name], dtype)
    x, g = draw(eqn, dtype)
    stacks = range(len(geometry.dims) + 1)
    squared = list(CASES).index(name) % len(stacks)
    found = jax.jit(lambda x, g: everything(eqn, geometry, x, g, stacks, squared))(x, g)
    return geometry, squared, jax.tree.map(np.asarray, found), *gradients(CASES[name], x, g)


def growth(terms):
    return precision.rounding_growth(terms, np.float32)


def squares_of(stack):
    return np.sum(np.square(stack, dtype=np.float64), axis=tuple(range(1, stack.ndim)))


TABLE = [(name, "float32") for name in CASES]
TABLE += [(name, "bfloat16") for name in ("same", "everything", "odd order", "long window")]
table = pytest.mark.parametrize(("name", "dtype"), TABLE)


@table
def test_products_are_the_gradients_to_the_roundings_stated(name, dtype):
    geometry, _, found, truth, sizes = results(name, dtype)
    for products in found["products"]:
        assert products.dtype == np.float32 and products.shape == truth.shape
        error = np.abs(products.astype(np.float64) - truth)
        assert np.all(error <= growth(geometry.positions + 1) * sizes)


@table
def test_norms_are_those_of_the_gradients_they_avoid(name, dtype):
    geometry, squared, found, truth, _ = results(name, dtype)
    expected = squares_of(truth)
    for squares in (found["squares"], found["gram"]):
        assert squares.dtype == np.float32
        np.testing.assert_allclose(squares, expected, rtol=2e-6)
    # A = sum_p |patch_p| |g_p|, over groups too.
    patches, cotangents = found["lengths"]
    cotangents = np.moveaxis(cotangents.reshape(B, geometry.positions, geometry.groups), 1, 2)
    absolute = np.sum(patches.astype(np.float64) * cotangents, axis=(1, 2))
    assert np.all(absolute * (1 + 1e-5) >= np.sqrt(expected))
    if not geometry.empty:
        error = np.abs(np.sqrt(found["squares"].astype(np.float64)) - np.sqrt(expected))
        shift = growth(geometry.positions + 1) * absolute
        terms = convolution_products.square_roundings(geometry, squared)
        assert np.all(error <= shift + growth(terms) * np.sqrt(expected))


@table
def test_weighted_sum_is_the_sum_of_the_gradients(name, dtype):
    geometry, _, found, truth, sizes = results(name, dtype)
    for total in (found["sum"], found["sum by products"]):
        assert total.dtype == np.float32 and total.shape == truth.shape[1:]
        error = np.abs(total.astype(np.float64) - truth.sum(0))
        assert np.all(error <= growth(B * geometry.positions + 1) * sizes.sum(0))


@pytest.mark.parametrize("name", ["groups", "disjoint windows"])
def test_gram_matrices_are_those_of_the_patches(name):
    eqn, geometry = equation(CASES[name])
    assert convolution_products.multiplies_pixels(geometry) == (name == "groups")
    patches = convolution_products.ImageLayout(geometry, len(geometry.dims))

    def found(x, g):
        grams = (
            convolution_products.patch_gram(geometry, x),
            convolution_products.cotangent_gram(geometry, g),
        )
        sides = patches.image(geometry.image(x))[0], patches.cotangent(geometry.cotangent(g))
        return grams, sides, convolution_products.patch_squares(geometry, x)

    grams, sides, squares = jax.jit(found)(*draw(eqn))
    for gram, side in zip(grams, sides, strict=True):
        expected = np.einsum("bgpc,bgsc->bgps", *[np.asarray(side, np.float64)] * 2)
        np.testing.assert_allclose(gram, expected, atol=1e-5)
    np.testing.assert_allclose(squares, np.diagonal(grams[0], axis1=2, axis2=3), rtol=1e-6)


@pytest.mark.parametrize("dtypes", [("float16",) * 2, ("bfloat16", "float32"), ("float64",) * 2])
def test_other_dtypes_and_two_at_once(dtypes):
    with jax.enable_x64("float64" in dtypes):
        eqn, geometry = equation(CASES["everything"])
        x, g = (a.astype(d) for a, d in zip(draw(eqn), map(jnp.dtype, dtypes), strict=True))
        truth, _ = gradients(CASES["everything"], x, g)
        found = jax.jit(lambda x, g: everything(eqn, geometry, x, g, [2], 1))(x, g)
        wide = precision.accumulation_dtype(*dtypes)
        assert found["sum"].dtype == found["gram"].dtype == found["products"][0].dtype == wide
        tolerance = 1e-13 if wide == np.float64 else 1e-5
        np.testing.assert_allclose(found["sum"], truth.sum(0), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(found["squares"], squares_of(truth), rtol=tolerance)
        np.testing.assert_allclose(found["gram"], squares_of(truth), rtol=tolerance)


def equations_of(fun, *args):
    """Every equation of a program, counting the body of a loop once."""
    pending, found = [jax.make_jaxpr(fun)(*args).jaxpr], []
    while pending:
        for eqn in pending.pop().eqns:
            found.append(eqn)
            inner = [eqn.params.get(key) for key in ("jaxpr", "call_jaxpr")]
            pending += [getattr(body, "jaxpr", body) for body in inner if body is not None]
    return found


def test_narrow_operands_are_multiplied_as_they_are():
    eqn, geometry = equation(CASES["everything"], "bfloat16")
    x, g = draw(eqn, "bfloat16")
    found = equations_of(lambda x, g: everything(eqn, geometry, x, g, range(3), 0), x, g)
    products = [e for e in found if e.primitive.name in ("dot_general", "conv_general_dilated")]
    assert {"dot_general", "conv_general_dilated"} == {e.primitive.name for e in products}
    for product in products:
        assert {v.aval.dtype for v in product.invars} == {jnp.dtype("bfloat16")}
        assert product.outvars[0].aval.dtype == np.float32


@pytest.mark.parametrize(("name", "products"), [("same", 9), ("1-D", 4), ("long window", 1)])
def test_one_product_per_offset_and_no_patches(name, products):
    eqn, geometry = equation(CASES[name])
    x, g = draw(eqn)
    norm = convolution_products.squared_norm_by_products
    found = equations_of(lambda x, g: norm(geometry, x, g, 0), x, g)
    assert sum(e.primitive.name == "dot_general" for e in found) == products
    largest = max(math.prod(v.aval.shape) for e in found for v in e.outvars)
    padded = math.prod(d.depth * d.stride for d in geometry.dims) * geometry.images
    assert largest <= B * padded * max(geometry.channels, geometry.features)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="its CPU compiler reorders barriers")
def test_memory_is_that_of_one_offset():
    eqn, geometry = equation(case((1, 12, 12, 8), (3, 3, 8, 8)))
    x, g = draw(eqn)
    norm = jax.jit(lambda x, g: convolution_products.squared_norm_by_products(geometry, x, g, 0))
    memory = norm.lower(x, g).compile().memory_analysis()
    # The layouts of image and cotangent, and one or two slices. Patches would add nine more.
    assert memory.temp_size_in_bytes < 5.5 * x.nbytes


def test_the_cheapest_stack_depends_on_the_shapes():
    def stack(size, channels, features, window, stride):
        shapes = (1, size, size, channels), (window, window, channels, features)
        return convolution_products.cheapest_stack(equation(case(*shapes, (stride, stride)))[1])

    assert stack(32, 64, 64, 3, 1) == 1
    assert stack(32, 3, 64, 3, 1) == 2
    assert stack(32, 64, 128, 1, 2) == 0
    assert stack(224, 3, 768, 16, 16) == 2  # disjoint patches are not larger than x


@st.composite
def geometries(draw):
    def each(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(2))

    groups, (channels, features) = draw(st.integers(1, 2)), each(1, 2)
    window, sizes, spread, dilation = each(1, 4), each(1, 6), each(1, 2), each(1, 3)
    spans = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    lengths = [(n - 1) * s + 1 for n, s in zip(sizes, spread, strict=True)]
    low = each(-2, 4)
    # The padding after the image is enough for one window, or more, or less.
    least = [span - n - p for span, n, p in zip(spans, lengths, low, strict=True)]
    high = [max(a, b) for a, b in zip(least, each(-2, 4), strict=True)]
    lhs = (draw(st.integers(1, 2)), *sizes, groups * channels)
    rhs = (*window, channels, groups * features)
    padding = list(zip(low, high, strict=True))
    dilations = {"lhs_dilation": spread, "rhs_dilation": dilation}
    return case(lhs, rhs, each(1, 3), padding, groups=groups, **dilations)


@hypothesis.settings(max_examples=5)
@hypothesis.given(drawn=geometries(), stack=st.integers(0, 2))
def test_any_geometry(drawn, stack):
    eqn, geometry = equation(drawn)
    x, g = draw(eqn)
    found = jax.jit(lambda x, g: everything(eqn, geometry, x, g, [stack], stack))(x, g)
    truth, sizes = gradients(drawn, x, g)
    scale = np.maximum(sizes, 1e-30)
    assert np.all(np.abs(found["products"][0] - truth) <= 1e-5 * scale)
    assert np.all(np.abs(found["sum"] - truth.sum(0)) <= 1e-5 * scale.sum(0))
    absolute = squares_of(sizes)
    for squares in (found["squares"], found["gram"]):
        assert np.all(np.abs(squares - squares_of(truth)) <= 1e-4 * absolute + 1e-30)
