"""Products by group: the gradient that the rule describes is the one that autodiff gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bevel import precision
from bevel.clipping.norms import rule_for
from bevel.clipping.norms.registry import SEPARATE, SHARED
from bevel.clipping.program.equations import bind

B, M, D, K, G = 3, 6, 4, 5, 3
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
WEIGHTS = {"gdk": (G, D, K), "gkd": (G, K, D), "dgk": (D, G, K)}
LOOPS = {
    "no loop": (),
    "separate": ((SEPARATE, 2),),
    "shared in separate": ((SEPARATE, 2), (SHARED, 3)),
    "separate in shared": ((SHARED, 2), (SEPARATE, 3)),
}
TABLE = [
    ("gdk", "no loop", "float32"),
    ("gkd", "separate", "bfloat16"),
    ("dgk", "shared in separate", "float64"),
    ("gdk", "separate in shared", "float32"),
]
table = pytest.mark.parametrize(("order", "loops", "dtype"), TABLE)


def equation(order, dtype="float32", **shapes):
    """`ragged_dot_general` with weights whose dimensions are in this order."""
    numbers = lax.RaggedDotDimensionNumbers(
        (((1,), (order.index("d"),)), ((), ())), (0,), (order.index("g"),)
    )
    types = [
        jax.ShapeDtypeStruct(shapes.get("rows", (M, D)), jnp.dtype(dtype)),
        jax.ShapeDtypeStruct(WEIGHTS[order], jnp.dtype(dtype)),
        jax.ShapeDtypeStruct((G,), jnp.int32),
    ]
    product = functools.partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=numbers)
    eqn = jax.make_jaxpr(product)(*types).eqns[-1]
    return eqn, rule_for("ragged_dot_general")


def draw(loops, dtype):
    """Rows, sizes and g. Some groups are empty, and some rows belong to none."""
    rng = np.random.default_rng(0)
    lead = (B, *(length for _, length in loops))
    cuts = np.sort(rng.integers(0, M + 1, size=(*lead, G)), axis=-1)
    sizes = np.diff(cuts, axis=-1, prepend=0).astype(np.int32)
    rows, g = (rng.normal(size=(*lead, M, n)).astype(jnp.dtype(dtype)) for n in (D, K))
    return [rows, sizes], g


def gradients(eqn, loops, h, g):
    """(B, separate loops..., weights), by autodiff in float64, one example and step at a time."""
    shape = eqn.invars[1].aval.shape

    @jax.jit
    def pull(rows, sizes, g):
        pulled = jax.vjp(lambda w: bind(eqn, [rows, w, sizes])[0], jnp.zeros(shape, np.float64))[1]
        return pulled(g)[0]

    lead = g.shape[: 1 + len(loops)]
    found = np.zeros((*lead, *shape))
    with jax.enable_x64(True):
        for i in np.ndindex(lead):
            found[i] = pull(h[0][i].astype(np.float64), h[1][i], g[i].astype(np.float64))
    return found.sum(axis=tuple(1 + i for i, (kind, _) in enumerate(loops) if kind == SHARED))


@functools.cache
def results(order, loops, dtype):
    loops = LOOPS[loops]
    with jax.enable_x64(dtype == "float64"):
        eqn, rule = equation(order, dtype)
        h, g = draw(loops, dtype)
        factor = np.linspace(0.5, 2, B).astype(precision.accumulation_dtype(dtype))

        def compute(h, g, factor):
            gradient = rule.gradient(eqn, 1, loops, h, g)
            norms = {way: gradient.norm(way) for way in ("gram", "product")}
            return norms, gradient.weighted_sum(factor, None, "gram")

        found = jax.jit(compute, compiler_options=QUICK)(h, g, factor)
        norms, total = jax.tree.map(np.asarray, found)
    truth = gradients(eqn, loops, h, g)
    return norms, total, truth, np.tensordot(factor.astype(np.float64), truth, 1)


@table
def test_norm_is_that_of_the_gradient_it_avoids(order, loops, dtype):
    norms, _, truth, _ = results(order, loops, dtype)
    lengths = np.linalg.norm(truth.reshape(B, -1), axis=1)
    tolerance = 1e-13 if dtype == "float64" else 1e-5
    slack = 1.001
    for norm, sound in norms.values():
        np.testing.assert_allclose(norm.estimate, lengths, rtol=tolerance)
        assert np.all(norm.upper >= lengths) and np.all(sound)
        assert np.all(norm.upper <= slack * lengths)


@table
def test_weighted_sum_is_the_gradient_of_the_batch(order, loops, dtype):
    _, found, _, total = results(order, loops, dtype)
    wide = precision.accumulation_dtype(dtype)
    assert found.dtype == wide and found.shape == total.shape
    off = {"float32": 1e-5, "bfloat16": 2e-2, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(found, total, atol=off * np.max(np.abs(total)))


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("order", WEIGHTS)
def test_sizes_and_sides_are_those_of_the_gradient(order, loops):
    loops = LOOPS[loops]
    eqn, rule = equation(order)
    made = jax.eval_shape(lambda h, g: rule.gradient(eqn, 1, loops, h, g), *draw(loops, "float32"))
    first, sizes = 1 + made.separate, rule.sizes(eqn, 1, loops)
    assert np.prod(made.left.values.shape[1:first]) == sizes.separate
    assert np.prod(made.left.values.shape[first : first + made.rows]) == sizes.rows
    assert (made.left.size, made.right.size) == (sizes.left, sizes.right) == (G * D, K)
    separate, left, right = rule.sides(eqn, 1)
    assert not separate and [order[i] for i in (*left, *right)] == ["g", "d", "k"]


def test_other_forms_are_left_to_jax():
    eqn, rule = equation("gdk")
    assert rule.accepts(eqn, 1)
    assert not rule.accepts(eqn, 0)  # the rows are a parameter
    assert not rule.accepts(equation("gdk", rows=(0, D))[0], 1)
    rows, sizes = jnp.ones((2, M, D)), jnp.ones((2, G), jnp.int32)
    numbers = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), (1,), (0,))
    product = functools.partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=numbers)
    assert not rule.accepts(jax.make_jaxpr(product)(rows, jnp.ones((G, D, K)), sizes).eqns[-1], 1)
    gradient = jax.grad(lambda w, x, n: jnp.sum(lax.ragged_dot(x, w, n)))
    program = jax.make_jaxpr(gradient)(jnp.ones((G, D, K)), rows[0], sizes[0])
    backward = [e for e in program.eqns if e.primitive.name == "ragged_dot_general"][-1]
    assert not any(rule.accepts(backward, i) for i in range(2))
