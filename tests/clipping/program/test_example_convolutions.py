"""Convolutions of two values of one example are right on a mesh, where XLA's own may be wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.program.example_convolutions import (
    UNROLLED,
    by_products,
    convolve_examples,
    is_by_products,
    needs_products,
)

B = 8
NHWC, NCHW, ODD = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWNC")
SIDES = {"N": 0, "H": 1, "W": 2, "C": 3}, {"H": 0, "W": 1, "I": 2, "O": 3}


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ordered(x, names, axes):
    """A batch of values with the dimensions that `names` says."""
    return jnp.transpose(x, (0, *(1 + axes[name] for name in names)))


def convolution(dims=NHWC, stride=1, padding="SAME", spread=1, apart=1, groups=1, batch_groups=1):
    def apply(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            padding,
            lhs_dilation=(spread, spread),
            rhs_dilation=(apart, apart),
            dimension_numbers=dims,
            feature_group_count=groups,
            batch_group_count=batch_groups,
        )

    return apply


# images, height and width, channels, kernel, filters, options
CONVOLUTIONS = {
    "plain": (1, 6, 2, 3, 4, {}),
    "channels first": (1, 6, 2, 3, 4, {"dims": NCHW}),
    "in an odd order": (2, 6, 2, 3, 4, {"dims": ODD}),
    "with strides": (1, 7, 3, 3, 4, {"stride": 2}),
    "in groups": (2, 6, 4, 3, 6, {"groups": 2, "padding": "VALID"}),
    "in groups of images": (4, 6, 2, 3, 4, {"batch_groups": 2}),
    "dilated": (1, 8, 2, 3, 4, {"apart": 2, "padding": [(2, 1), (1, -1)]}),
    "transposed": (1, 5, 2, 3, 4, {"spread": 2, "padding": [(1, 2), (0, 1)]}),
    "of one pixel": (1, 6, 8, 1, 8, {}),
    "by a kernel of the image's size": (3, 6, 2, 6, 4, {"padding": "VALID"}),
    "by a kernel with many offsets": (1, 12, 1, 11, 2, {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_give_the_convolution_of_each_example(name, dtype):
    n, size, channels, window, filters, options = CONVOLUTIONS[name]
    dims, apply = options.get("dims", NHWC), convolution(**options)
    per_group = channels // options.get("groups", 1)
    x = ordered(draw(0, 2, n, size, size, channels), dims[0], SIDES[0]).astype(dtype)
    w = ordered(draw(1, 2, window, window, per_group, filters), dims[1], SIDES[1]).astype(dtype)
    (eqn,) = jax.make_jaxpr(apply)(x[0], w[0]).eqns
    found = jax.jit(lambda x, w: convolve_examples(x, w, eqn.params, eqn.outvars[0].aval))(x, w)
    expected = jnp.stack([apply(*pair) for pair in zip(x, w, strict=True)])
    assert found.dtype == expected.dtype
    scale = np.abs(np.asarray(expected, np.float32)).max()
    tolerance = (1e-5 if dtype == "float32" else 2e-2) * scale
    np.testing.assert_allclose(
        np.asarray(found, np.float32), np.asarray(expected, np.float32), atol=tolerance
    )


def test_many_products_are_a_loop():
    apply = convolution(padding="VALID")
    x, w = draw(0, 2, 1, 20, 20, 1), draw(1, 2, 10, 10, 1, 1)
    (eqn,) = jax.make_jaxpr(apply)(x[0], w[0]).eqns
    program = jax.make_jaxpr(lambda x, w: convolve_examples(x, w, eqn.params, eqn.outvars[0].aval))
    assert UNROLLED < 10 * 10
    assert "scan" in [e.primitive.name for e in program(x, w).eqns]


def test_a_convolution_with_one_operand_of_the_example_stays_one():
    apply = convolution()
    x, w = draw(0, B, 1, 6, 6, 2), draw(1, 3, 3, 2, 4)
    (eqn,) = jax.make_jaxpr(apply)(x[0], w).eqns
    assert needs_products(eqn) and not is_by_products(eqn)
    run = jax.vmap(by_products(eqn), (0, None))
    assert [e.primitive.name for e in jax.make_jaxpr(run)(x, w).eqns].count("dot_general") == 0
    np.testing.assert_allclose(run(x, w), jax.vmap(apply, (0, None))(x, w), rtol=1e-6)


def plain(w, x):
    return jnp.sum(jnp.sin(convolution()(x, w)))


def standardised(w, x):
    centred = w - jnp.mean(w, axis=(0, 1, 2), keepdims=True)
    return plain(centred / (1e-3 + jnp.std(w, axis=(0, 1, 2), keepdims=True)), x)


def depthwise(w, x):
    kernel = jnp.tile(jnp.swapaxes(w[..., :1], 2, 3), (1, 1, 1, 4))
    return jnp.sum(jnp.sin(convolution(groups=2)(x, kernel)))


def stacked(w, x):
    # JAX types the gradient of the second one's input with the Explicit sharding of the input.
    return plain(jnp.tile(w, (1, 1, 2, 1)), jnp.sin(convolution()(x, w)))


@pytest.mark.parametrize("loss", [plain, standardised, depthwise, stacked])
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("options", [{}, {"engine": "vmap"}, {"norms": "keep"}], ids=str)
def test_norms_on_a_mesh_are_those_of_each_example(loss, kind, options):
    """`jit(vmap(grad))` gave norms that were too small by any factor, some of them zero."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(getattr(AxisType, kind),) * 2)
    w, x = draw(1, 3, 3, 2, 4), draw(0, B, 6, 6, 2)
    one = jax.jit(jax.grad(loss))
    expected = [np.linalg.norm(one(w, x[i : i + 1])) for i in range(B)]
    private = bevel.clipped_grad(loss, l2_clip_norm=1.0, return_grad_norms=True, **options)
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, NamedSharding(mesh, P("data")))
        kernel = jax.device_put(w, NamedSharding(mesh, P()))
        found = private(kernel, placed)[1].grad_norms
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize(
    "options", [{}, {"norms": "product"}, {"norms": "gram"}, {"memory": "low"}], ids=str
)
def test_a_contribution_to_a_grouped_kernel_on_a_mesh_is_within_the_clip_norm(kind, options):
    """XLA multiplied the sum by the number of devices that hold the same examples."""

    def loss(w, x):
        return jnp.sum(jnp.sin(convolution(groups=4)(x, w)))

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(getattr(AxisType, kind),) * 2)
    w, x = draw(1, 3, 3, 1, 8), draw(0, B, 8, 8, 4)
    expected = jax.grad(loss)(w, x[:1])
    expected = np.asarray(expected / np.linalg.norm(expected))
    private = bevel.clipped_grad(loss, l2_clip_norm=1.0, **options)
    with jax.set_mesh(mesh):
        placed, others = jax.device_put((x, np.arange(B) > 0), NamedSharding(mesh, P("data")))
        kernel = jax.device_put(w, NamedSharding(mesh, P()))
        found = np.asarray(private(kernel, placed, is_padding_example=others))
    assert np.linalg.norm(found) <= 1
    np.testing.assert_allclose(found, expected, atol=1e-3)


def grouped(w, x):
    return jnp.sum(jnp.sin(convolution(groups=2)(x, w)))


@pytest.mark.fast
@pytest.mark.parametrize("options", [{}, {"engine": "vmap"}, {"norms": "keep"}], ids=str)
def test_an_example_that_is_not_finite_changes_no_other_where_nothing_is_split(options):
    """On one device, XLA multiplied values of different examples by zero and added them."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    w, x = draw(1, 3, 3, 2, 4), draw(0, B, 6, 6, 4)
    private = bevel.clipped_grad(
        grouped, l2_clip_norm=1.0, return_grad_norms=True, reduce_axes="data", **options
    )
    out = P(), bevel.clipping.Aux(grad_norms=P("data"))
    run = jax.jit(jax.shard_map(private, mesh=mesh, in_specs=(P(), P("data")), out_specs=out))
    x[0] = 0  # an example without a gradient
    wanted, finite = run(w, x)
    x[0] = np.inf
    found, aux = run(w, x)
    np.testing.assert_array_equal(aux.grad_norms[1:], finite.grad_norms[1:])
    np.testing.assert_allclose(found, wanted, atol=1e-6)
