"""Matrix products: the gradient that the rule describes is the one that autodiff gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bevel
from bevel import precision
from bevel.clipping.norms import rule_for
from bevel.clipping.norms.registry import SEPARATE, SHARED

B = 2
rule = rule_for("dot_general")


def product(h_contract, w_contract, weight=1, h_batch=(), w_batch=()):
    """dot_general of (h, w), with the weight as operand number `weight`."""
    h, w = (h_contract, h_batch), (w_contract, w_batch)

    def fun(x, y, **options):
        first, second = (h, w) if weight == 1 else (w, h)
        operands = (x, y) if weight == 1 else (y, x)
        numbers = (first[0], second[0]), (first[1], second[1])
        return lax.dot_general(*operands, numbers, **options)

    return fun


# name: (function of h and w, shape of h for one example, shape of w, operand that is the weight)
CASES = {
    "vector": (product((0,), (0,)), (6,), (6, 8), 1),
    "one row": (product((1,), (0,)), (1, 6), (6, 8), 1),
    "one row, outer dimensions of one": (product((2,), (0,)), (1, 1, 6), (6, 3), 1),
    "vector weight": (product((0,), (0,)), (6,), (6,), 1),
    "outer product": (product((), ()), (1,), (8,), 1),
    "rows": (product((1,), (0,)), (5, 6), (6, 8), 1),
    "columns": (product((0,), (1,)), (6, 5), (8, 6), 1),
    "weight on the left": (product((0,), (1,), 0), (6, 5), (8, 6), 0),
    "one row, weight on the left": (product((0,), (1,), 0), (6,), (8, 6), 0),
    "two contracted": (product((1, 2), (1, 0)), (4, 6, 5), (5, 6, 3), 1),
    "two contracted, left": (product((2, 0), (1, 3), 0), (6, 4, 5), (2, 5, 4, 6), 0),
    "several free": (product((2,), (1,)), (2, 3, 6), (4, 6, 2), 1),
    "several free, left": (product((1,), (2,), 0), (2, 6, 3), (4, 2, 6), 0),
    "heads": (product((2,), (1,), 1, (0,), (0,)), (4, 5, 6), (4, 6, 3), 1),
    "heads of one row": (product((1,), (0,), 1, (0,), (2,)), (4, 6), (6, 3, 4), 1),
    "heads inside": (product((0,), (2,), 1, (1,), (1,)), (6, 4, 5), (3, 4, 6), 1),
    "experts on the left": (product((2,), (1,), 0, (1,), (2,)), (5, 4, 6), (3, 6, 4), 0),
    "two batches, turned": (
        *(product((3,), (1,), 0, (0, 1), (3, 0)), (3, 2, 5, 6), (2, 6, 4, 3)),
        0,
    ),
    "nothing but a batch": (product((), (), 1, (0,), (0,)), (7,), (7,), 1),
}
LOOPS = {
    "no loop": (),
    "separate": ((SEPARATE, 2),),
    "shared": ((SHARED, 3),),
    "separate in separate": ((SEPARATE, 2), (SEPARATE, 3)),
    "shared in separate": ((SEPARATE, 2), (SHARED, 3)),
    "separate in shared": ((SHARED, 2), (SEPARATE, 3)),
    "shared in shared": ((SHARED, 2), (SHARED, 3)),
}
DTYPES = ("float32", "bfloat16", "float64", "float16")
# Each equation in one loop and dtype, and one equation in all of them.
TABLE = [
    (name, list(LOOPS)[i % len(LOOPS)], DTYPES[i % len(DTYPES)]) for i, name in enumerate(CASES)
]
TABLE += [("rows", "no loop", dtype) for dtype in DTYPES]
TABLE = list(dict.fromkeys(TABLE))
table = pytest.mark.parametrize(("name", "loops", "dtype"), TABLE)
# Compile quickly: the programs are small.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def equation(name, dtype="float32", **options):
    fun, h, w, weight = CASES[name]
    types = [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in (h, w)]
    (eqn,) = jax.make_jaxpr(lambda h, w: fun(h, w, **options))(*types).eqns
    return eqn, weight


def draw(eqn, weight, loops, dtypes):
    """h and g (B, loops..., own), with a different scale for each example and step."""
    rng = np.random.default_rng(0)
    lead = (B, *(length for _, length in loops))
    shapes = eqn.invars[1 - weight].aval.shape, eqn.outvars[0].aval.shape
    return [
        (rng.normal(size=lead + s) * 2.0 ** rng.integers(-2, 3, size=lead + (1,) * len(s))).astype(
            jnp.dtype(dtype)
        )
        for s, dtype in zip(shapes, dtypes, strict=True)
    ]


def gradients(name, loops, h, g):
    """The gradients by autodiff in float64, and the sums of their absolute terms.

    Both are (B, separate loops..., weight).
    """
    fun, _, w_shape, _ = CASES[name]

    def pull(h, g):
        return jax.vjp(lambda w: fun(h, w), jnp.zeros(w_shape, np.float64))[1](g)[0]

    for _ in range(2 + len(loops)):
        pull = jax.vmap(pull)
    with jax.enable_x64(True):
        h, g = (np.stack([x, abs(x)]).astype(np.float64) for x in (h, g))
        steps = np.asarray(pull(h, g))
    return steps.sum(axis=tuple(2 + i for i, (kind, _) in enumerate(loops) if kind == SHARED))


def ways_for(eqn, weight, loops):
    alone = rule.sizes(eqn, weight, loops).rows == 1
    return ("outer", "gram", "product") if alone else ("gram", "product")


@functools.cache
def results(name, loops, dtypes, **options):
    """Norm and sum in one program, to compile once. The ways alternate."""
    turn = list(CASES).index(name) + list(LOOPS).index(loops)
    loops = LOOPS[loops]
    with jax.enable_x64("float64" in dtypes):
        eqn, weight = equation(name, dtypes[0], **options)
        h, g = draw(eqn, weight, loops, dtypes)
        factor = np.linspace(0.5, 2, B).astype(precision.accumulation_dtype(*dtypes))

        def compute(h, g, factor):
            gradient = rule.gradient(eqn, weight, loops, [h], g)
            ways = ways_for(eqn, weight, loops)
            way, scaled = ways[turn % len(ways)], turn % 4 < 2
            return gradient.norm(way, scaled), gradient.weighted_sum(factor, None, way)

        found = jax.jit(compute, compiler_options=QUICK)(h, g, factor)
        found = jax.tree.map(np.asarray, found)
    truth, sizes = gradients(name, loops, h, g)
    weighted = [np.tensordot(factor.astype(np.float64), x, 1) for x in (truth, sizes)]
    return *found, truth, *weighted


def assert_norm_is(found, truth, dtypes):
    lengths = np.linalg.norm(truth.reshape(B, -1), axis=1)
    wide = precision.accumulation_dtype(*dtypes)
    tolerance = 1e-13 if wide == np.float64 else 1e-5
    norm, sound = found
    assert norm.estimate.dtype == norm.upper.dtype == wide
    assert norm.estimate.shape == norm.upper.shape == sound.shape == (B,)
    np.testing.assert_allclose(norm.estimate, lengths, rtol=tolerance)
    assert np.all(norm.upper >= lengths) and np.all(norm.upper <= 1.001 * lengths)
    assert np.all(sound)


def assert_sum_is(found, total, sizes, dtypes):
    wide = precision.accumulation_dtype(*dtypes)
    off = precision.rounding_growth(100 * B, wide) + precision.unit_roundoff(wide)
    assert found.dtype == wide and found.shape == total.shape
    assert np.all(np.abs(found - total) <= off * sizes)


@table
def test_norm_is_that_of_the_gradient_it_avoids(name, loops, dtype):
    norm, _, truth, *_ = results(name, loops, (dtype, dtype))
    assert_norm_is(norm, truth, (dtype, dtype))


@table
def test_weighted_sum_is_the_gradient_of_the_batch(name, loops, dtype):
    _, found, _, total, sizes = results(name, loops, (dtype, dtype))
    assert_sum_is(found, total, sizes, (dtype, dtype))


@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float16", "float32")], ids=str)
def test_a_product_may_be_wider_than_its_operands(dtypes):
    wide = jnp.dtype(dtypes[1])
    norm, found, truth, *sums = results("rows", "no loop", dtypes, preferred_element_type=wide)
    assert_norm_is(norm, truth, dtypes)
    assert_sum_is(found, *sums, dtypes)


@pytest.mark.parametrize("loops", ["no loop", "separate in shared"])
@pytest.mark.parametrize("name", CASES)
def test_sizes_and_sides_are_those_of_the_gradient(name, loops):
    loops = LOOPS[loops]
    eqn, weight = equation(name)
    types = [
        jax.ShapeDtypeStruct((B, *(n for _, n in loops), *v.aval.shape), v.aval.dtype)
        for v in (eqn.invars[1 - weight], eqn.outvars[0])
    ]
    made = jax.eval_shape(lambda h, g: rule.gradient(eqn, weight, loops, [h], g), *types)
    first = 1 + made.separate
    sizes = rule.sizes(eqn, weight, loops)
    for side in (made.left, made.right):
        shape = side.values.shape
        assert np.prod(shape[1:first]) == sizes.separate
        assert np.prod(shape[first : first + made.rows]) == sizes.rows
        assert shape[first + made.rows :] == side.entries and not side.one_hot
    assert (made.left.size, made.right.size) == (sizes.left, sizes.right)
    assert not sizes.looked_up
    separate, left, right = rule.sides(eqn, weight)
    assert sorted((*separate, *left, *right)) == list(range(len(CASES[name][2])))
    loop_dims = [None for kind, _ in loops if kind == SEPARATE]
    assert made.dims == (*loop_dims, *separate, *left, *right)
    assert made.left_dims == tuple(left) and made.right_dims == tuple(right)
    assert rule.others(eqn, weight) == (1 - weight,)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_accepts_every_product_of_floats(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        eqn, _ = equation(name, dtype)
    assert rule.accepts(eqn, 0) and rule.accepts(eqn, 1)


def traced(shape, dtype):
    rows, inner, outer = shape
    types = [jax.ShapeDtypeStruct(s, dtype) for s in ((rows, inner), (inner, outer))]
    (eqn,) = jax.make_jaxpr(jnp.matmul)(*types).eqns
    return eqn


@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_refuses_what_is_no_float(dtype):
    assert not rule.accepts(traced((2, 8, 9), jnp.dtype(dtype)), 1)


@pytest.mark.parametrize("shape", [(0, 8, 9), (1, 0, 9), (1, 8, 0)], ids=str)
def test_refuses_empty_products(shape):
    assert not rule.accepts(traced(shape, jnp.dtype("float32")), 1)


def squares(w, x):
    return jnp.sum(jnp.tanh(x @ w).astype(jnp.float32) ** 2)


def used_both_ways(w, x):
    return squares(w, x) + squares(w.T, jnp.tanh(x @ w))


TURNED = {"turned": lambda w, x: squares(w.T, x), "used both ways": used_both_ways}


@pytest.mark.parametrize("way", ["gram", "product"])
@pytest.mark.parametrize("name", TURNED)
def test_sums_of_a_turned_matrix_in_bfloat16(name, way):
    """With default compiler options: CPUs lack bfloat16 products with a transposed result."""
    rng = np.random.default_rng(3)
    w = jnp.asarray(0.1 * rng.normal(size=(64, 64)), jnp.bfloat16)
    x = jnp.asarray(rng.normal(size=(2, 4, 64)), jnp.bfloat16)
    found, kept = (
        jax.jit(bevel.clipped_grad(TURNED[name], l2_clip_norm=0.01, norms=norms))(w, x)
        for norms in (way, "keep")
    )
    assert jnp.linalg.norm(found - kept) <= 0.05 * jnp.linalg.norm(kept)
