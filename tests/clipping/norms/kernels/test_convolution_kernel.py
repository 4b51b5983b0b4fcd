"""The kernels, interpreted on the CPU against float64, and lowered for a GPU without one."""

import functools
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from bevel import precision
from bevel.clipping.norms.convolution_geometry import ConvolutionGeometry, Dimension, ImageLayout
from bevel.clipping.norms.kernels import convolution_kernel
from bevel.clipping.norms.kernels.convolution_kernel import (
    Tiling,
    available,
    shifted_product_squares,
    shifted_weighted_sum,
    tiling,
    xla_shifted_product_squares,
    xla_shifted_weighted_sum,
)


class Shape(NamedTuple):
    phases: int
    n: int
    size: int
    c: int
    length: int
    k: int
    places: tuple[tuple[int, int], ...]


# Tiles of 16 x 32 over blocks of 16 rows.
TILE = Tiling(rows=16, columns=32, block=16, num_warps=4)
SHAPES = {
    "whole tiles": Shape(1, 4, 34, 16, 32, 32, ((0, 0), (0, 2))),
    "ragged rows": Shape(1, 3, 40, 8, 37, 8, ((0, 0), (0, 1), (0, 3))),
    "a place in several tiles": Shape(1, 3, 20, 40, 18, 48, ((0, 0), (0, 2))),
    "several places in a tile": Shape(1, 5, 20, 8, 14, 8, ((0, 0), (0, 1), (0, 2), (0, 5), (0, 6))),
    "rows that start on odd bytes": Shape(1, 3, 20, 3, 17, 5, ((0, 0), (0, 3))),
    "phases": Shape(4, 5, 20, 9, 17, 31, ((0, 0), (3, 1), (1, 3), (3, 0), (2, 2))),
    "fewer rows than a block": Shape(2, 3, 7, 24, 5, 8, ((1, 2), (0, 0))),
    "one place again": Shape(1, 2, 9, 8, 8, 8, ((0, 1), (0, 1))),
    "one example": Shape(1, 1, 20, 16, 18, 16, ((0, 2),)),
    "one of everything": Shape(1, 1, 1, 1, 1, 1, ((0, 0),)),
}
PHASES = SHAPES["phases"]
DTYPES = ("bfloat16", "float32")
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def quick(form, places):
    return jax.jit(functools.partial(form, places=places), compiler_options=QUICK)


KERNEL = {"tile": TILE, "tf32": True, "interpret": True}
SQUARES = {
    "kernel": functools.partial(shifted_product_squares, **KERNEL),
    "XLA": xla_shifted_product_squares,
}
SUMS = {
    "kernel": functools.partial(shifted_weighted_sum, **KERNEL),
    "in 2 shares": functools.partial(shifted_weighted_sum, splits=2, **KERNEL),
    "XLA": xla_shifted_weighted_sum,
}


def operands(shape, dtypes=DTYPES, seed=0):
    rng = np.random.default_rng(seed)
    sizes = (shape.phases, shape.n, shape.size, shape.c), (shape.n, shape.length, shape.k)
    x, g = (
        jnp.asarray(rng.normal(size=size), jnp.dtype(dtype))
        for size, dtype in zip(sizes, dtypes, strict=True)
    )
    return x, g, jnp.asarray(rng.normal(size=shape.n), jnp.float32)


def gradients(x, g, shape):
    """(N, places, C, K), in float64."""
    x, g = (np.asarray(a, np.float64) for a in (x, g))
    rows = [x[phase, :, shift : shift + shape.length] for phase, shift in shape.places]
    return np.stack([np.einsum("ntc,ntk->nck", a, g) for a in rows], axis=1)


def check_squares(found, x, g, shape):
    exact, sizes = gradients(x, g, shape), gradients(abs(x), abs(g), shape)
    assert found.dtype == jnp.float32 and found.shape == (shape.n,)
    gamma = precision.rounding_growth(2 * shape.length + exact[0].size + 8)
    error = np.abs(np.asarray(found, np.float64) - (exact**2).sum((1, 2, 3)))
    np.testing.assert_array_less(error, gamma * (sizes**2).sum((1, 2, 3)))


def check_sum(found, x, g, factor, shape):
    factor = np.asarray(factor, np.float64)
    exact = np.einsum("n,npck->pck", factor, gradients(x, g, shape))
    size = np.einsum("n,npck->pck", abs(factor), gradients(abs(x), abs(g), shape))
    assert found.dtype == jnp.float32 and found.shape == exact.shape
    gamma = precision.rounding_growth(shape.n * shape.length + 8)
    error = np.abs(np.asarray(found, np.float64) - exact)
    np.testing.assert_array_less(error, gamma * size)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("form", SQUARES.values(), ids=SQUARES)
def test_squares_are_those_of_the_products_they_avoid(form, shape):
    x, g, _ = operands(shape)
    check_squares(quick(form, shape.places)(x, g), x, g, shape)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("form", SUMS.values(), ids=SUMS)
def test_weighted_sum_is_that_of_the_products_it_avoids(form, shape):
    x, g, factor = operands(shape)
    check_sum(quick(form, shape.places)(x, g, factor), x, g, factor, shape)


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16",) * 2, ("float32",) * 2])
def test_x_and_g_may_have_any_of_the_dtypes(dtypes):
    x, g, factor = operands(PHASES, dtypes)
    check_squares(quick(SQUARES["kernel"], PHASES.places)(x, g), x, g, PHASES)
    found = quick(SUMS["in 2 shares"], PHASES.places)(x, g, factor)
    check_sum(found, x, g, factor, PHASES)


@pytest.mark.parametrize("splits", [None, 1, 3, 4, 5, 9])
def test_shares_need_not_divide_the_examples(splits):
    x, g, factor = operands(PHASES)
    form = functools.partial(shifted_weighted_sum, splits=splits, **KERNEL)
    check_sum(quick(form, PHASES.places)(x, g, factor), x, g, factor, PHASES)


def convolution(strides, n=3):
    """A 3x3 convolution of 7x6 images, 4 channels to 5: its geometry, and the function."""
    x, w = (n, 7, 6, 4), (3, 3, 4, 5)
    out = [-(-size // s) for size, s in zip((7, 6), strides, strict=True)]
    low = [
        max((o - 1) * s + 3 - size, 0) // 2 for o, s, size in zip(out, strides, (7, 6), strict=True)
    ]
    dims = tuple(
        Dimension(size, 3, o, s, 1, 1, p)
        for size, o, s, p in zip((7, 6), out, strides, low, strict=True)
    )
    specs = ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))

    def apply(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=numbers)

    return ConvolutionGeometry(specs, 1, 1, 4, 5, dims), apply, x, w


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 2)])
def test_the_flat_layout_gives_the_gradient_of_a_convolution(strides):
    geometry, apply, x_shape, w_shape = convolution(strides)
    layout, rng = ImageLayout(geometry, stack=0), np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in (x_shape, w_shape))
    out, transpose = jax.vjp(lambda w: apply(x, w), w)
    g = jnp.asarray(rng.normal(size=out.shape), jnp.float32)
    x = x.astype(jnp.bfloat16).astype(jnp.float32)  # their products are exact in float32
    image = layout.image(geometry.image(x[:, None]))[:, :, 0]
    cotangent = layout.cotangent(geometry.cotangent(g[:, None]))[:, 0]
    ones = jnp.ones(x_shape[0], jnp.float32)
    _, transpose = jax.vjp(lambda w: apply(x, w), w)
    found = quick(SUMS["kernel"], tuple(layout.places))(image, cotangent, ones)
    np.testing.assert_allclose(found.reshape(w_shape), transpose(g)[0], rtol=1e-4, atol=1e-4)
    each = [jax.vjp(lambda w, i=i: apply(x[i : i + 1], w), w)[1](g[i : i + 1])[0] for i in range(3)]
    squares = quick(SQUARES["kernel"], tuple(layout.places))(image, cotangent)
    np.testing.assert_allclose(squares, [np.sum(np.square(w)) for w in each], rtol=1e-4)


@pytest.mark.parametrize("form", SUMS.values(), ids=SUMS)
def test_factors_are_not_rounded_to_the_dtype_of_g(form):
    """With rows of ones, the sum is that of the factors. Rounded to bfloat16, they would cancel."""
    shape = Shape(1, 2, 1, 8, 1, 8, ((0, 0),))
    x, g = jnp.ones((1, 2, 1, 8), jnp.bfloat16), jnp.ones((2, 1, 8), jnp.bfloat16)
    factor = jnp.array([1 + 2**-20, -1], jnp.float32)
    assert np.all(np.asarray(quick(form, shape.places)(x, g, factor)) == np.float32(2**-20))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("form", SQUARES.values(), ids=SQUARES)
def test_what_is_not_finite_stays_in_its_example_and_shows(form, value):
    """Also in the first and last row, which are next to rows of other examples."""
    for row in 0, PHASES.length - 1:
        x, g, _ = operands(PHASES)
        x, g = x.at[0, 1, row, 2].set(value), g.at[3, row, 30].set(-value)
        found = quick(form, PHASES.places)(x, g)
        assert np.isfinite(found).tolist() == [True, False, True, False, True]


@pytest.mark.parametrize("form", SUMS.values(), ids=SUMS)
def test_what_is_not_finite_shows_in_the_sum_even_for_a_factor_of_zero(form):
    x, g, factor = operands(PHASES)
    found = quick(form, PHASES.places)(x.at[0, 4, 16, 2].set(np.inf), g, factor.at[4].set(0))
    # At place 0 only that channel is affected. All other sums are unchanged.
    wrong = np.argwhere(~np.isfinite(np.asarray(found)))
    assert len(wrong) == PHASES.k and {tuple(at) for at in wrong[:, :2].tolist()} == {(0, 2)}


@pytest.mark.parametrize("form", SUMS.values(), ids=SUMS)
def test_a_factor_that_is_not_finite_shows(form):
    x, g, factor = operands(PHASES)
    found = quick(form, PHASES.places)(x, g, factor.at[4].set(np.nan))
    assert np.all(np.isnan(found))


@pytest.mark.parametrize("axis", ["n", "size", "c", "length", "k", "places"])
def test_an_empty_axis_gives_zeros(axis):
    shape = Shape(1, 2, 4, 5, 3, 6, ((0, 0), (0, 1)))
    empty = {"places": ()} if axis == "places" else {axis: 0}
    if axis == "size":
        empty["length"] = 0
        empty["places"] = ((0, 0),)
    shape = shape._replace(**empty)
    x, g, factor = operands(shape)
    for form in SQUARES.values():
        found = form(x, g, places=shape.places)
        assert found.shape == (shape.n,) and not np.any(found)
    for form in SUMS.values():
        found = form(x, g, factor, places=shape.places)
        assert found.shape == (len(shape.places), shape.c, shape.k) and not np.any(found)


def test_nothing_as_large_as_the_products_is_kept():
    shape = Shape(1, 64, 40, 64, 36, 64, ((0, 0), (0, 1), (0, 2), (0, 4)))
    x, g, factor = operands(shape, ("bfloat16", "bfloat16"))

    def largest(form, *arguments):
        call = functools.partial(form, places=shape.places, interpret=True)
        jaxpr = jax.make_jaxpr(call)(*arguments)
        return max(v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars)

    assert largest(shifted_product_squares, x, g) <= x.size
    assert largest(shifted_weighted_sum, x, g, factor) <= shape.n * len(shape.places) * 64 * 64


@pytest.mark.parametrize("check_vma", [True, False])
def test_each_shard_sums_its_own_examples(check_vma):
    shape = Shape(1, 8, 20, 8, 18, 8, ((0, 0), (0, 2)))
    x, g, factor = operands(shape)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    split = PartitionSpec("data")
    # The interpreter's loops lose varying axes, so with check_vma the kernel is only traced.
    options = {"tile": TILE, "tf32": True, "interpret": not check_vma}

    def both(x, g, factor):
        total = shifted_weighted_sum(x, g, factor, shape.places, **options)
        squares = shifted_product_squares(x, g, shape.places, **options)
        return squares, jax.lax.psum(total, "data")

    sharded = jax.shard_map(
        both,
        mesh=mesh,
        in_specs=(PartitionSpec(None, "data"), split, split),
        out_specs=(split, PartitionSpec()),
        check_vma=check_vma,
    )
    if check_vma:
        squares, total = jax.eval_shape(sharded, x, g, factor)
        assert squares.shape == (8,) and total.shape == (2, 8, 8)
        return
    squares, total = jax.jit(sharded, compiler_options=QUICK)(x, g, factor)
    check_squares(squares, x, g, shape)
    check_sum(total, x, g, factor, shape)


@pytest.mark.parametrize(
    ("left", "right", "length", "expected"),
    [
        (576, 64, 1086, (128, 64)),
        (1152, 128, 286, (128, 128)),
        (72, 16, 1086, (128, 16)),
        (8, 3, 5, (64, 16)),
    ],
)
def test_tiles_are_no_larger_than_the_product_needs(left, right, length, expected):
    found = tiling(left, right, length)
    assert (found.rows, found.columns) == expected


# name: (phases, N, size, C), (N, length, K), places
LOWERED = {
    "32x32": (
        (1, 4, 1156, 64),
        (4, 1086, 64),
        tuple((0, 34 * i + j) for i in range(3) for j in range(3)),
    ),
    "strided": ((4, 4, 289, 64), (4, 271, 128), ((0, 0), (1, 0), (0, 1), (3, 18))),
    "3 channels": ((1, 4, 1156, 3), (4, 1086, 16), ((0, 0), (0, 70))),
    "one": ((1, 1, 1, 1), (1, 1, 1), ((0, 0),)),
}


# Compiling needs a GPU, but lowering does not. It checks that every operation has a rule.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", LOWERED.values(), ids=LOWERED)
@pytest.mark.parametrize("dtypes", [DTYPES, ("bfloat16",) * 2, ("float32",) * 2])
@pytest.mark.parametrize(
    "form",
    [
        shifted_product_squares,
        shifted_weighted_sum,
    ],
    ids=["squares", "sum"],
)
def test_kernel_lowers_for_a_gpu(form, dtypes, case):
    *shapes, places = case
    arguments = list(map(jax.ShapeDtypeStruct, shapes, map(jnp.dtype, dtypes)))
    if form is not shifted_product_squares:
        arguments.append(jax.ShapeDtypeStruct(shapes[1][:1], jnp.float32))
    gpu = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=gpu)):
        traced = jax.jit(functools.partial(form, places=places, tf32=True)).trace(*arguments)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "xla.gpu.triton" in text


def both_forms(x, g, factor, places=PHASES.places, **options):
    """A call of each form."""
    return (
        lambda: shifted_product_squares(x, g, places, interpret=True, **options),
        lambda: shifted_weighted_sum(x, g, factor, places, interpret=True, **options),
    )


def test_float32_is_taken_only_as_tf32():
    x, g, factor = operands(PHASES, ("float32", "float32"))
    for call in both_forms(x, g, factor):
        with pytest.raises(ValueError, match=r"x is float32, but the kernel .* tf32=True"):
            call()
    for call in both_forms(x, g.astype("float16"), factor, tf32=True):
        with pytest.raises(ValueError, match="g is float16"):
            call()


@pytest.mark.parametrize("shapes", [((2, 4, 8), (2, 4, 8)), ((1, 2, 4, 8), (3, 4, 8))])
def test_rows_that_do_not_pair_are_refused(shapes):
    x, g = (jnp.zeros(shape, jnp.bfloat16) for shape in shapes)
    for call in both_forms(x, g, jnp.zeros(g.shape[0], jnp.float32), ((0, 0),)):
        with pytest.raises(ValueError, match=r"Pass x as \(phases, N, size, C\) and g as"):
            call()


@pytest.mark.parametrize("place", [(4, 0), (-1, 0), (0, 4), (0, -1)])
def test_places_outside_the_image_are_refused(place):
    for call in both_forms(*operands(PHASES), ((0, 0), place)):
        with pytest.raises(ValueError, match="rows of another example would be read"):
            call()


def test_factors_are_float32_and_one_for_each_example():
    x, g, factor = operands(PHASES, ("bfloat16", "bfloat16"))
    for wrong in factor.astype("bfloat16"), factor[:3], factor[:, None]:
        with pytest.raises(ValueError, match="Pass one float32 number for each"):
            shifted_weighted_sum(x, g, wrong, PHASES.places, interpret=True)


LARGE = jax.ShapeDtypeStruct((1, 2**15, 2**14, 3), jnp.bfloat16)
LARGE_G = jax.ShapeDtypeStruct((2**15, 2**14, 3), jnp.bfloat16)


def test_operands_beyond_the_reach_of_offsets_are_refused():
    """Rows of 3 count as 8, to which they are padded."""
    with pytest.raises(ValueError, match=r"x is .*, but the kernel can address only 2\^31"):
        jax.eval_shape(lambda x, g: shifted_product_squares(x, g, ((0, 0),)), LARGE, LARGE_G)


def test_without_the_backend_the_error_names_the_other_form(monkeypatch):
    monkeypatch.setattr(convolution_kernel, "triton", None)
    for call in both_forms(*operands(PHASES)):
        with pytest.raises(NotImplementedError, match="Use xla_shifted_product_squares or xla_"):
            call()


BF16, F32 = (jnp.dtype(d) for d in DTYPES)
SMALL = jax.ShapeDtypeStruct((1, 2, 4, 3), BF16), jax.ShapeDtypeStruct((2, 3, 3), BF16)


def test_no_kernel_on_the_cpu():
    assert not available(*SMALL)


def test_available_on_the_gpu_for_what_the_kernel_takes(monkeypatch):
    device = types.SimpleNamespace(compute_capability="9.0")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    x, g = SMALL
    assert available(x, g)
    assert not available(x, jax.ShapeDtypeStruct(g.shape, F32))
    assert available(x, jax.ShapeDtypeStruct(g.shape, F32), tf32=True)
    assert not available(LARGE, g) and not available(x, LARGE_G)
    device.compute_capability = "8.0"
    assert not available(x, g)
