"""The rule for convolution kernels, against float64 one example at a time, and in a model."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from compare import assert_close
from jax import lax

import bevel
from bevel import precision
from bevel.clipping.accumulate.coefficients import coefficients, tree_norm
from bevel.clipping.norms import convolution, rule_for
from bevel.clipping.norms.convolution import ConvolutionGradient
from bevel.clipping.norms.kernels import convolution_kernel, gram_kernel
from bevel.clipping.norms.registry import SEPARATE, SHARED
from bevel.clipping.norms.weighting import weighted
from bevel.clipping.options import Clip

B = 3
TF32 = "as TF32"  # float32 that a matrix unit rounds to 11 significant bits
WAYS = ("gram", "product")
rule = rule_for("conv_general_dilated")
# Compile quickly: the programs are small.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def case(lhs, rhs, strides=(1, 1), padding="SAME", order="NHWC HWIO NHWC", groups=1, **dilations):
    options = {"dimension_numbers": tuple(order.split()), "feature_group_count": groups}
    return lhs, rhs, {"window_strides": strides, "padding": padding} | options | dilations


CASES = {
    "same": case((1, 5, 4, 3), (3, 3, 3, 4)),
    "strides": case((1, 7, 6, 2), (3, 2, 2, 3), (2, 1)),
    "dilated": case((1, 6, 5, 2), (2, 3, 2, 3), (1, 2), "VALID", rhs_dilation=(2, 1)),
    "groups": case((1, 4, 4, 6), (2, 3, 2, 6), groups=3),
    "depthwise": case((1, 4, 5, 3), (3, 2, 1, 3), groups=3),
    "everything": case(
        *((2, 6, 5, 4), (3, 2, 2, 6), (3, 2), [(2, -1), (3, 4)]),
        **{"groups": 2, "lhs_dilation": (2, 1), "rhs_dilation": (2, 3)},
    ),
    "channels first": case((2, 4, 5, 6), (6, 2, 3, 2), (2, 1), order="NCHW OIHW NCHW", groups=2),
    "1-D": case((2, 9, 3), (4, 3, 5), (2,), order="NWC WIO NWC"),
    "3-D": case((1, 3, 4, 4, 2), (2, 2, 2, 2, 3), (1, 2, 1), order="NDHWC DHWIO NDHWC"),
}
LOOPS = {
    "no loop": (),
    "separate": ((SEPARATE, 2),),
    "shared": ((SHARED, 3),),
    "shared in separate": ((SEPARATE, 2), (SHARED, 3)),
    "separate in shared": ((SHARED, 2), (SEPARATE, 3)),
}
DTYPES = ("float32", "bfloat16")
TABLE = [(name, "no loop", DTYPES[i % 2]) for i, name in enumerate(CASES)]
TABLE += [("same", "no loop", "bfloat16"), ("groups", "separate", TF32)]
TABLE += [("1-D", loops, DTYPES[i % 2]) for i, loops in enumerate(LOOPS)]
TABLE = list(dict.fromkeys(TABLE))
TABLE += [("1-D", "separate", "float64")]
table = pytest.mark.parametrize(("name", "loops", "kind"), TABLE)


def dtype_of(kind):
    return jnp.dtype("float32" if kind == TF32 else kind)


def equation(name, dtype="float32", **options):
    lhs, rhs, own = CASES[name]
    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in (lhs, rhs)]
    fun = functools.partial(lax.conv_general_dilated, **own, **options)
    (eqn,) = jax.make_jaxpr(fun)(*types).eqns
    return eqn


def gradient_of(eqn, loops, kind, x, g):
    made = rule.gradient(eqn, 1, loops, [x], g)
    if kind != TF32:
        return made
    tf32 = dataclasses.replace(made.multiplier, roundoff=2.0**-11, mantissa=10)
    return dataclasses.replace(made, multiplier=tf32)


def draw(eqn, loops, dtype, seed=0):
    """x and g (B, loops..., own), with a different scale for each example and step."""
    rng = np.random.default_rng(seed)
    lead = (B, *(length for _, length in loops))
    return [
        (rng.normal(size=lead + s) * 2.0 ** rng.integers(-2, 3, size=lead + (1,) * len(s))).astype(
            dtype
        )
        for s in (eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)
    ]


@functools.cache
def pullback(name, axes):
    """(x, g) -> the gradient of the kernel in float64, batched over this many axes."""
    _, rhs, own = CASES[name]

    def pull(x, g):
        zeros = jnp.zeros(rhs, np.float64)
        return jax.vjp(lambda w: lax.conv_general_dilated(x, w, **own), zeros)[1](g)[0]

    def each(x, g):
        flat = [a.reshape(-1, *a.shape[axes:]) for a in (x, g)]
        return lax.map(lambda pair: pull(*pair), tuple(flat)).reshape(*x.shape[:axes], *rhs)

    return jax.jit(each, compiler_options=QUICK)


def gradients(name, loops, x, g):
    """Gradients by autodiff, one step of one example at a time: (..., B, separate..., kernel)."""
    axes = x.ndim - len(CASES[name][0])
    with jax.enable_x64(True):
        wide = [np.asarray(a).astype(np.float64) for a in (x, g)]
        steps = np.asarray(pullback(name, axes)(*wide))
    first = axes - len(loops)
    return steps.sum(axis=tuple(first + i for i, (kind, _) in enumerate(loops) if kind == SHARED))


def lengths(x, axes=1):
    return np.linalg.norm(x.reshape(*x.shape[:axes], -1), axis=-1)


@dataclasses.dataclass
class Results:
    norms: dict  # by (way, scaled)
    sums: dict  # by way
    formed: np.ndarray
    truth: np.ndarray  # (B, separate..., kernel), of the operands as they are multiplied
    sizes: np.ndarray  # the same for the absolute terms
    factor: np.ndarray


@functools.cache
def results(name, loops, kind):
    """Everything in one program, to compile once."""
    loops, dtype = LOOPS[loops], dtype_of(kind)
    with jax.enable_x64(kind == "float64"):
        eqn = equation(name, dtype)
        x, g = draw(eqn, loops, dtype)
        factor = np.linspace(0.5, 2, B).astype(precision.accumulation_dtype(dtype))

        def compute(x, g, factor):
            made = gradient_of(eqn, loops, kind, x, g)
            norms = {(way, s): made.norm(way, s) for way in WAYS for s in (True, False)}
            return norms, {w: made.weighted_sum(factor, None, w) for w in WAYS}, made.formed()

        found = jax.jit(compute, compiler_options=QUICK)(x, g, factor)
        found = jax.tree.map(np.asarray, found)
        if kind == TF32:
            x, g = (np.asarray(lax.reduce_precision(a, 8, 10)) for a in (x, g))
    truth, sizes = (gradients(name, loops, f(x), f(g)) for f in (np.asarray, np.abs))
    return Results(*found, truth, sizes, factor.astype(np.float64))


@table
def test_norm_is_that_of_the_gradient_it_avoids(name, loops, kind):
    found = results(name, loops, kind)
    exact, wide = lengths(found.truth), precision.accumulation_dtype(dtype_of(kind))
    tolerance = 1e-13 if kind == "float64" else 1e-5
    slack = {TF32: 1.004}.get(kind, 1.001)
    for norm, sound in found.norms.values():
        assert norm.estimate.dtype == norm.upper.dtype == wide
        assert norm.estimate.shape == norm.upper.shape == sound.shape == (B,)
        np.testing.assert_allclose(norm.estimate, exact, rtol=tolerance)
        assert np.all(norm.upper >= exact) and np.all(norm.upper <= slack * exact)
        assert np.all(sound)


@table
def test_weighted_sum_is_the_gradient_of_the_batch(name, loops, kind):
    found = results(name, loops, kind)
    total, sizes = (np.tensordot(found.factor, a, 1) for a in (found.truth, found.sizes))
    wide = precision.accumulation_dtype(dtype_of(kind))
    roundoff = {TF32: 2.0**-10}.get(kind, precision.unit_roundoff(wide))
    off = precision.rounding_growth(1000, wide) + roundoff
    for got in found.sums.values():
        assert got.dtype == wide and got.shape == total.shape
        assert np.all(np.abs(got - total) <= off * sizes)


@table
def test_formed_gradients_are_those_of_autodiff(name, loops, kind):
    found = results(name, loops, kind)
    dtype = dtype_of(kind)
    assert found.formed.dtype == dtype and found.formed.shape == found.truth.shape
    off = precision.rounding_growth(1000, precision.accumulation_dtype(dtype))
    off += precision.unit_roundoff(dtype)
    error = np.abs(found.formed.astype(np.float64) - found.truth)
    assert np.all(error <= off * found.sizes)


def test_a_wide_result_of_narrow_operands():
    eqn = equation("same", "bfloat16", preferred_element_type=jnp.dtype("float32"))
    x, g = draw(eqn, (), np.float32)
    made = rule.gradient(eqn, 1, (), [jnp.asarray(x, jnp.bfloat16)], jnp.asarray(g))
    assert made.x.dtype == made.g.dtype == np.float32
    exact = lengths(gradients("same", (), np.asarray(made.x), g))
    np.testing.assert_allclose(made.norm("product").norm.estimate, exact, rtol=1e-5)


# The bound holds for the actual contribution.


def constant(left, right):
    return lambda rng, x, g: (np.full(x, left), np.full(g, right))


def normal(left, right):
    return lambda rng, x, g: (left * rng.normal(size=x), right * rng.normal(size=g))


def cancelling(rng, x, g):
    """A constant image, and cotangents whose sum is nearly zero."""
    values = rng.normal(size=g)
    return np.ones(x), values - values.mean(axis=(1, 2), keepdims=True) * (1 - 1e-3)


def rare(rng, x, g):
    """The cotangent is zero where the image is large."""
    image, cotangent = 1e-6 * rng.normal(size=x), rng.normal(size=g)
    image[:, 0], cotangent[:, :2] = 1e3, 0
    return image, cotangent


HOSTILE = {
    "ordinary": normal(1, 1),
    "ones": constant(1, 1),
    "just below a power of two": constant(2 - 2.0**-23, 2 - 2.0**-23),
    "just above a power of two": constant(1 + 2.0**-7, 1),
    "rounded down": constant(1 + 2.0**-11 - 2.0**-23, 1),
    "rounded down, turned": constant(1, 1 + 2.0**-11 - 2.0**-23),
    "cancelling": cancelling,
    "rare": rare,
    "opposite scales": normal(1e30, 1e-30),
    "opposite ends": constant(1.5 * 2.0**-125, 2.0**125),
    "opposite ends, turned": constant(2.0**125, 1.5 * 2.0**-125),
    "large": normal(1e15, 1e15),
    "small": normal(1e-15, 1e-15),
    "squares too small": constant(2.0**-32, 2.0**-32),
    "squares too large": constant(2.0**31, 2.0**31),
    "zero": constant(0, 1),
    "zero, turned": constant(1, 0),
}
BOUNDED = ("float32", "bfloat16", TF32)
ROWS = [(name, kind) for name in HOSTILE for kind in BOUNDED]


@functools.cache
def hostile(kind, name="same"):
    """Norms by (way, scaled) of all names at once, norms of contributions, and clip norms."""
    eqn, rng = equation(name, dtype_of(kind)), np.random.default_rng(0)
    shapes = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    pairs = [make(rng, *shapes) for make in HOSTILE.values()]
    x, g = (np.stack(side).astype(dtype_of(kind)) for side in zip(*pairs, strict=True))
    made = gradient_of(eqn, (), kind, jnp.asarray(x), jnp.asarray(g))
    if kind == "bfloat16":  # as on an accelerator, where the scaled operand is rounded to 8 bits
        narrow = {"scaled": jnp.dtype(kind), "roundoff": 2.0**-8}
        made = dataclasses.replace(made, multiplier=dataclasses.replace(made.multiplier, **narrow))
    roundoff = made.multiplier.roundoff
    steps = np.array([*(0.5 * (1 + roundoff * np.arange(0, 3, 0.25))), 0.9, 1.0, 1.5])

    def clip(made):
        norms = {(way, s): made.norm(way, s) for way in WAYS for s in (True, False)}
        summed = {}
        for key, (norm, _) in norms.items():
            whole = tree_norm([norm])
            limits = jnp.asarray(steps, np.float32)[:, None] * whole.upper[None]
            ok = jnp.isfinite(limits) & (limits < 1e38)
            limits = jnp.where(ok, limits, 1.0)
            factors = jax.vmap(lambda c, w=whole: coefficients(w, c, Clip(1.0)))(limits)

            # As in `weighted_sum`, up to the sum itself.
            def operands(factor):
                return list(weighted(made.multiplier, made.x, made.g, factor, None))

            summed[key] = limits, jax.vmap(operands)(factors)
        return norms, summed

    norms, summed = jax.tree.map(np.asarray, jax.jit(clip, compiler_options=QUICK)(made))
    result = {}
    for key, (limits, (images, cotangents)) in summed.items():
        shape = (len(steps), len(HOSTILE))
        images, cotangents = (a.reshape(*shape, *a.shape[2:]) for a in (images, cotangents))
        added = lengths(gradients(name, (), images, cotangents), 2)
        result[key] = norms[key], added, limits.astype(np.float64)
    if kind == TF32:
        x, g = (np.asarray(lax.reduce_precision(a, 8, 10)) for a in (x, g))
    return result, lengths(gradients(name, (), x, g))


@pytest.mark.parametrize(("name", "kind"), ROWS)
def test_contribution_is_bounded_as_it_is_summed(name, kind):
    example = list(HOSTILE).index(name)
    for (_, scaled), (measured, added, limits) in hostile(kind)[0].items():
        if scaled or measured.sound[example]:
            assert np.all(added[:, example] <= limits[:, example] * (1 + 1e-13))


@pytest.mark.parametrize("kind", BOUNDED)
def test_norms_at_any_scale(kind):
    found, exact = hostile(kind)
    within = (exact < 1e38) & (exact > 1e-38)
    for (_, scaled), (measured, *_) in found.items():
        upper = measured.norm.upper.astype(np.float64)
        trusted = measured.sound | scaled
        assert np.all((upper >= exact) | ~trusted)
        for name in ("ordinary", "opposite scales", "opposite ends", "opposite ends, turned"):
            example = list(HOSTILE).index(name)
            if scaled and within[example]:
                estimate = measured.norm.estimate[example]
                np.testing.assert_allclose(estimate, exact[example], rtol=1e-4, err_msg=name)
        assert measured.sound[list(HOSTILE).index("ordinary")]


@pytest.mark.parametrize("way", WAYS)
def test_many_small_rows_are_bounded_or_not_trusted(way):
    """Orthogonal rows: the traces are in range, but the squares of their parts are not."""
    rows = 64
    x = jnp.asarray(2.0**-32 * np.eye(rows)[None, None], jnp.float32)
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (x.shape[1:], (1, rows, rows))]
    options = CASES["1-D"][2] | {"window_strides": (1,)}
    (eqn,) = jax.make_jaxpr(functools.partial(lax.conv_general_dilated, **options))(*types).eqns
    norm, sound = rule.gradient(eqn, 1, (), [x], x).norm(way, False)
    assert norm.upper[0] >= 2.0**-61 or not sound[0]


@pytest.mark.parametrize("name", ["same", "groups"])
def test_what_is_not_finite_shows_in_its_example(name):
    eqn = equation(name)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def norms(x, g):
        made = rule.gradient(eqn, 1, (), [x], g)
        return [made.norm(way, scaled) for way in WAYS for scaled in (True, False)]

    for value in (np.nan, np.inf):
        x, g = draw(eqn, (), np.float32)
        x[1, 0, 2, 1, 1] = value
        g[2, 0, 1, 2, 2] = -value
        for norm, sound in norms(x, g):
            assert np.isfinite(norm.upper).tolist() == [True, False, False]
            assert np.asarray(sound).tolist() == [True, False, False]


@pytest.mark.parametrize("loops", ["no loop", "separate"])
def test_unwanted_examples_add_nothing_whatever_they_hold(loops):
    eqn = equation("1-D")
    x, g = draw(eqn, LOOPS[loops], np.float32)
    keep, factor = np.array([False, True, False]), np.array([1, 0.5, 2], np.float32)
    wanted = 0.5 * gradients("1-D", LOOPS[loops], x, g)[1]
    x[0], g[2] = np.nan, np.inf
    total = rule.gradient(eqn, 1, LOOPS[loops], [x], g).weighted_sum(factor, keep)
    np.testing.assert_allclose(total, wanted, rtol=1e-4, atol=1e-4)


# The kernels, interpreted.


@pytest.fixture
def kernels(monkeypatch):
    """Pretends that the device has kernels, and interprets them."""
    tile = convolution_kernel.Tiling(rows=64, columns=16, block=32)
    for name in ("shifted_product_squares", "shifted_weighted_sum"):
        own = functools.partial(getattr(convolution_kernel, name), tile=tile, interpret=True)
        monkeypatch.setattr(convolution_kernel, name, own)
    monkeypatch.setattr(gram_kernel, "available", lambda *dtypes, tf32: True)
    # Without `jit`: programs compiled before do not use a kernel.
    sums = ConvolutionGradient.norm_sums.__wrapped__
    monkeypatch.setattr(ConvolutionGradient, "norm_sums", sums)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("1-D", TF32), ("groups", "bfloat16")],
)
def test_kernels_give_what_the_compiler_gives(kernels, name, kind):
    found = results_by_kernels(name, kind)
    by_compiler = results(name, "no loop", kind)
    exact = lengths(by_compiler.truth)
    for norm, sound in found[0]:
        np.testing.assert_allclose(norm.estimate, exact, rtol=1e-5)
        assert np.all(norm.upper >= exact) and np.all(norm.upper <= 1.001 * exact)
        assert np.all(sound)
    # The coefficient is not rounded.
    total, sizes = (
        np.tensordot(by_compiler.factor, a, 1) for a in (by_compiler.truth, by_compiler.sizes)
    )
    assert found[1].dtype == np.float32 and found[1].shape == total.shape
    assert np.all(np.abs(found[1] - total) <= precision.rounding_growth(1000) * sizes)
    # Excluded examples are zero, whatever their values.
    alone = by_compiler.factor[1] * by_compiler.truth[1]
    np.testing.assert_allclose(found[2], alone, atol=1e-4 * np.max(np.abs(alone)))


def results_by_kernels(name, kind):
    eqn = equation(name, dtype_of(kind))
    x, g = draw(eqn, (), dtype_of(kind))
    factor = np.linspace(0.5, 2, B).astype(np.float32)
    keep = np.arange(B) == 1
    wrong = [np.where(np.reshape(keep, (-1, *(1,) * (a.ndim - 1))), a, np.nan) for a in (x, g)]

    def compute(x, g, wrong, factor, keep):
        made = gradient_of(eqn, (), kind, x, g)
        assert made.goes_to_kernel
        norms = [made.norm("product", s) for s in (True, False)]
        total = ConvolutionGradient.weighted_sum.__wrapped__
        other = gradient_of(eqn, (), kind, *wrong)
        return norms, total(made, factor, None, "product"), total(other, factor, keep, "product")

    compiled = jax.jit(compute, compiler_options=QUICK)
    return jax.tree.map(
        np.asarray, compiled(x, g, [w.astype(x.dtype) for w in wrong], factor, keep)
    )


def test_loops_with_slices_go_to_no_kernel(kernels):
    eqn = equation("1-D", "bfloat16")
    for loops in LOOPS.values():
        x, g = draw(eqn, loops, jnp.dtype("bfloat16"))
        made = rule.gradient(eqn, 1, loops, [jnp.asarray(x)], jnp.asarray(g))
        assert made.goes_to_kernel is all(kind == SHARED for kind, _ in loops)


# What the rule says about an equation.


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("name", CASES)
def test_sizes_are_those_of_the_gradient(name, loops):
    eqn, loops = equation(name), LOOPS[loops]
    sizes = rule.sizes(eqn, 1, loops)
    _, kernel, options = CASES[name]
    groups, out = options["feature_group_count"], eqn.outvars[0].aval.shape
    steps = {k: math.prod(n for kind, n in loops if kind == k) for k in (SEPARATE, SHARED)}
    assert sizes.separate == steps[SEPARATE] * groups
    assert sizes.separate * sizes.left * sizes.right == steps[SEPARATE] * math.prod(kernel)
    assert sizes.rows * groups * sizes.right == steps[SHARED] * math.prod(out)
    image = math.prod(eqn.invars[0].aval.shape)
    assert sizes.pixels * groups == steps[SHARED] * image and not sizes.looked_up
    assert rule.others(eqn, 1) == (0,) and rule.sides is None and rule.accepts(eqn, 1)


def traced(lhs, rhs, dtype="float32", **options):
    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in (lhs, rhs)]
    (eqn,) = jax.make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", **options))(
        *types
    ).eqns
    return eqn


def test_accepts_kernels_of_floats_only():
    assert rule.accepts(traced((1, 2, 5), (3, 2, 2)), 1)
    assert not rule.accepts(traced((1, 2, 5), (3, 2, 2)), 0)  # the image is not a kernel
    assert not rule.accepts(traced((1, 2, 5), (3, 2, 2), "int32"), 1)
    assert not rule.accepts(traced((4, 2, 5), (4, 2, 2), batch_group_count=2), 1)
    assert not rule.accepts(traced((0, 2, 5), (3, 2, 2)), 1)
    assert not rule.accepts(traced((1, 2, 1), (3, 2, 2)), 1)  # no output


# In a model.


def convolve(x, w, *strides, **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=numbers, **options)


def loss(params, batch):
    h = jnp.tanh(convolve(batch["image"], params["first"], 1, 1))
    h = jnp.tanh(convolve(h, params["second"], 2, 1, feature_group_count=2))
    for w in params["steps"]:
        h = jnp.tanh(convolve(h, w, 1, 1))
    return jnp.sum((jnp.mean(h, axis=(1, 2)) - batch["y"]) ** 2)


def looped(params, batch):
    """The same, with its last layers in a loop."""
    h = jnp.tanh(convolve(batch["image"], params["first"], 1, 1))
    h = jnp.tanh(convolve(h, params["second"], 2, 1, feature_group_count=2))
    h, _ = lax.scan(lambda h, w: (jnp.tanh(convolve(h, w, 1, 1)), None), h, params["steps"])
    return jnp.sum((jnp.mean(h, axis=(1, 2)) - batch["y"]) ** 2)


@functools.cache
def model():
    rng = np.random.default_rng(0)
    shapes = {"first": (3, 3, 2, 4), "second": (2, 3, 2, 6), "steps": (2, 1, 2, 6, 6)}
    params = {k: rng.normal(size=s).astype(np.float32) * 0.5 for k, s in shapes.items()}
    image = rng.normal(size=(4, 5, 4, 2)) * np.array([0.1, 1, 2, 4])[:, None, None, None]
    batch = {"image": image.astype(np.float32), "y": rng.normal(size=(4, 6)).astype(np.float32)}
    clip_norm = oracle.middle_norm(loss, params, batch)
    return params, batch, clip_norm, oracle.clipped_sum(loss, params, batch, clip_norm=clip_norm)


@pytest.mark.parametrize(("fun", "way"), [(loss, "gram"), (looped, "product"), (loss, "form")])
def test_a_model_is_clipped_as_by_the_oracle(fun, way):
    params, batch, clip_norm, expected = model()
    clipped = bevel.clipped_grad(fun, l2_clip_norm=clip_norm, norms=way, return_grad_norms=True)
    found, aux = jax.jit(clipped, compiler_options=QUICK)(params, batch)
    assert_close(found, expected.grad, 1e-4)  # the slack of norms
    np.testing.assert_allclose(aux.grad_norms, expected.norms, rtol=1e-5)


def test_a_model_in_bfloat16():
    params, batch, clip_norm, _ = model()
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (params, batch))
    clipped = bevel.clipped_grad(loss, l2_clip_norm=clip_norm, norms="product")
    found = jax.jit(clipped, compiler_options=QUICK)(*narrow)
    expected = oracle.clipped_sum(loss, *narrow, clip_norm=clip_norm)
    assert_close(found, expected.grad, 0.05)


def network(p, x):
    """Convolutions, each with a group normalisation."""
    h = x
    for kernel, scale, stride in zip(p["kernels"], p["scales"], (1, 2, 2), strict=False):
        numbers = ("NHWC", "HWIO", "NHWC")
        h = lax.conv_general_dilated(h, kernel, (stride,) * 2, "SAME", dimension_numbers=numbers)
        groups = h.reshape(*h.shape[:-1], 4, -1)
        mean, variance = (f(groups, axis=(1, 2, 4), keepdims=True) for f in (jnp.mean, jnp.var))
        normal = ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(h.shape)
        h = jax.nn.relu(normal * scale[None, None, None])
    return jnp.sum(jnp.square(h)) / h.shape[0]


# channels, pixels, examples: layers that are measured by Gram matrices, materialised, and both
NETWORKS = [((64, 128), 8, 32), ((32, 64), 16, 16), ((64, 64, 128), 16, 32)]


@pytest.mark.parametrize("channels, pixels, size", NETWORKS)
def test_a_network_takes_little_more_memory_than_its_gradient(channels, pixels, size):
    inputs = (3, *channels[:-1])
    kernels = [jnp.ones((3, 3, *pair)) for pair in zip(inputs, channels, strict=True)]
    params = {"kernels": kernels, "scales": [jnp.ones(c) for c in channels]}
    batch = jnp.ones((size, pixels, pixels, 3))

    def temporary(fun):
        return jax.jit(fun).lower(params, batch).compile().memory_analysis().temp_size_in_bytes

    times = temporary(bevel.clipped_grad(network, l2_clip_norm=1.0)) / temporary(jax.grad(network))
    # 1.35 on one device. On several, gradients that are materialised copy their values.
    assert times <= (1.6 if jax.__version_info__ < (0, 12) else 1.45)  # earlier compilers copy more


def test_chunks_of_examples_change_no_norm(monkeypatch):
    x, g = (jnp.asarray(np.random.default_rng(i).normal(size=(16, 1, 6, 6, 4))) for i in (0, 1))
    x, g = x.astype(jnp.float32), g.astype(jnp.float32)
    kernel = jax.ShapeDtypeStruct((3, 3, 4, 4), jnp.float32)
    options = {"window_strides": (1, 1), "padding": "SAME"}
    options["dimension_numbers"] = ("NHWC", "HWIO", "NHWC")
    fun = lambda x, w: lax.conv_general_dilated(x, w, **options)  # noqa: E731
    (eqn,) = jax.make_jaxpr(fun)(x[0], kernel).eqns

    def norms(small):
        monkeypatch.setattr(convolution, "SMALL", small)
        jax.clear_caches()
        return rule.gradient(eqn, 1, (), [x], g).norm("gram").norm

    whole, chunked = norms(2**40), norms(1)
    np.testing.assert_allclose(chunked.estimate, whole.estimate, rtol=1e-6)
    np.testing.assert_allclose(chunked.upper, whole.upper, rtol=1e-6)
    assert len(set(np.asarray(whole.estimate))) == 16
