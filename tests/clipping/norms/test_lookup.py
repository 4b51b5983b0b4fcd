"""Lookups: the gradient that the rule describes is the one that autodiff gives."""

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

B = 3
# Compile quickly: the programs are small.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def gather(table, picked, indices, offsets, mode="fill"):
    """Gathers one index in each of the dimensions `picked`, with `indices` of any shape."""
    numbers = lax.GatherDimensionNumbers(offsets, tuple(sorted(picked)), tuple(picked))
    sizes = tuple(1 if i in picked else n for i, n in enumerate(table))
    types = table, (*indices, len(picked))
    return lambda w, i: lax.gather(w, i, numbers, sizes, mode=mode), types


def dynamic_slice(table, picked):
    sizes = tuple(1 if i in picked else n for i, n in enumerate(table))
    return lambda w, *i: lax.dynamic_slice(w, i, sizes), (table, *((),) * len(table))


# name: (function of the table and the indices, shapes of both)
CASES = {
    "rows": gather((7, 4), (0,), (5,), (1,)),
    "one row": gather((7, 4), (0,), (), (0,)),
    "rows, moved into the table": gather((7, 4), (0,), (5,), (1,), "clip"),
    "rows that are there": gather((7, 4), (0,), (5,), (1,), "promise_in_bounds"),
    "indices in two dimensions": gather((7, 4), (0,), (2, 3), (2,), "clip"),
    "columns": gather((4, 7), (1,), (5,), (0,)),
    "rows inside": gather((2, 7, 3), (1,), (2, 3), (0, 3)),
    "two dimensions picked": gather((3, 4, 5), (0, 1), (6,), (1,)),
    "two dimensions picked, turned": gather((3, 5, 4), (2, 0), (6,), (1,), "clip"),
    "numbers of a matrix": gather((3, 4), (0, 1), (6,), ()),
    "numbers of a vector": gather((6,), (0,), (8,), (), "clip"),
    "dynamic_slice": dynamic_slice((7, 4), (0,)),
    "dynamic_slice inside": dynamic_slice((2, 7, 3), (1,)),
    "dynamic_slice of two dimensions": dynamic_slice((3, 4, 5), (0, 2)),
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
DTYPES = ("float32", "bfloat16", "float64")
# Each equation in one loop and dtype.
TABLE = [
    (name, list(LOOPS)[i % len(LOOPS)], DTYPES[i % len(DTYPES)]) for i, name in enumerate(CASES)
]
table = pytest.mark.parametrize(("name", "loops", "dtype"), TABLE)


def equation(name, dtype="float32", index="int32"):
    fun, (w, *indices) = CASES[name]
    types = [(w, dtype), *((shape, index) for shape in indices)]
    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(d)) for shape, d in types]
    eqn = jax.make_jaxpr(fun)(*types).eqns[-1]
    return eqn, rule_for(eqn.primitive.name)


def draw(eqn, name, loops, dtype, index="int32"):
    """Indices and g (B, loops..., own). Some indices are out of range, and some are equal."""
    rng = np.random.default_rng(0)
    lead = (B, *(length for _, length in loops))
    shape = eqn.invars[0].aval.shape
    beyond = 0 if "that are there" in name else 2
    if eqn.primitive.name == "gather":
        picked = eqn.params["dimension_numbers"].start_index_map
        own = (*lead, *eqn.invars[1].aval.shape[:-1])
        parts = [rng.integers(-beyond, shape[i] + beyond, size=own) for i in picked]
        h = [np.stack(parts, axis=-1)]
    else:
        h = [rng.integers(-beyond, n + beyond, size=lead) for n in shape]
    g = rng.normal(size=lead + eqn.outvars[0].aval.shape).astype(jnp.dtype(dtype))
    return [x.astype(index) for x in h], g


def gradients(eqn, loops, h, g):
    """The gradients by autodiff in float64, and the sums of their absolute terms.

    Both are (B, separate loops..., table).
    """
    shape = eqn.invars[0].aval.shape

    def pull(h, g):
        pulled = jax.vjp(lambda w: bind(eqn, [w, *h])[0], jnp.zeros(shape, np.float64))[1]
        return [pulled(x)[0] for x in (g, jnp.abs(g))]

    for _ in range(1 + len(loops)):
        pull = jax.vmap(pull)
    with jax.enable_x64(True):
        found = jax.jit(pull, compiler_options=QUICK)(h, g.astype(np.float64))
    shared = tuple(1 + i for i, (kind, _) in enumerate(loops) if kind == SHARED)
    return [np.asarray(x).sum(axis=shared) for x in found]


@functools.cache
def results(name, loops, dtype):
    """Everything in one program, to compile once."""
    scaled = list(CASES).index(name) % 2 == 0
    loops = LOOPS[loops]
    with jax.enable_x64(dtype == "float64"):
        eqn, rule = equation(name, dtype)
        h, g = draw(eqn, name, loops, dtype)
        factor = np.linspace(0.5, 2, B).astype(precision.accumulation_dtype(dtype))
        ways = ("outer", "gram") if rule.sizes(eqn, 0, loops).rows == 1 else ("gram",)

        def compute(h, g, factor):
            gradient = rule.gradient(eqn, 0, loops, h, g)
            norms = {way: gradient.norm(way, scaled) for way in ways}
            return norms, gradient.weighted_sum(factor, None, ways[0])

        found = jax.jit(compute, compiler_options=QUICK)(h, g, factor)
        norms, total = jax.tree.map(np.asarray, found)
    truth, sizes = gradients(eqn, loops, h, g)
    weighted = [np.tensordot(factor.astype(np.float64), x, 1) for x in (truth, sizes)]
    return norms, total, truth, *weighted


@table
def test_norm_is_that_of_the_gradient_it_avoids(name, loops, dtype):
    norms, _, truth, *_ = results(name, loops, dtype)
    lengths = np.linalg.norm(truth.reshape(B, -1), axis=1)
    tolerance = 1e-13 if dtype == "float64" else 1e-5
    slack = 1.001
    for norm, sound in norms.values():
        assert norm.estimate.dtype == norm.upper.dtype == precision.accumulation_dtype(dtype)
        np.testing.assert_allclose(norm.estimate, lengths, rtol=tolerance)
        assert np.all(norm.upper >= lengths) and np.all(sound)
        assert np.all(norm.upper <= slack * lengths + 1e-9)  # above 0 even if none is in range


@table
def test_weighted_sum_is_the_gradient_of_the_batch(name, loops, dtype):
    _, found, _, total, sizes = results(name, loops, dtype)
    wide = precision.accumulation_dtype(dtype)
    roundoff = precision.unit_roundoff(wide)
    assert found.dtype == wide and found.shape == total.shape
    off = precision.rounding_growth(200, wide) + roundoff
    assert np.all(np.abs(found - total) <= off * sizes)


@pytest.mark.parametrize("loops", ["no loop", "separate in shared"])
@pytest.mark.parametrize("name", CASES)
def test_sizes_and_sides_are_those_of_the_gradient(name, loops):
    loops = LOOPS[loops]
    eqn, rule = equation(name)
    h, g = draw(eqn, name, loops, "float32")
    made = jax.eval_shape(lambda h, g: rule.gradient(eqn, 0, loops, h, g), h, g)
    first, sizes = 1 + made.separate, rule.sizes(eqn, 0, loops)
    assert sizes.looked_up and made.left.one_hot and not made.right.one_hot
    assert made.left.values.shape == made.right.values.shape[: first + made.rows]
    assert np.prod(made.left.values.shape[1:first]) == sizes.separate
    assert np.prod(made.left.values.shape[first:]) == sizes.rows
    assert made.right.values.shape[first + made.rows :] == made.right.entries
    assert (made.left.size, made.right.size) == (sizes.left, sizes.right)
    separate, left, right = rule.sides(eqn, 0)
    assert not separate
    assert sorted((*left, *right)) == list(range(len(eqn.invars[0].aval.shape)))
    loop_dims = [None for kind, _ in loops if kind == SEPARATE]
    assert made.dims == (*loop_dims, *left, *right)
    assert rule.others(eqn, 0) == tuple(range(1, len(eqn.invars)))


@pytest.mark.parametrize("name", CASES)
def test_accepts_a_table_and_no_index(name):
    eqn, rule = equation(name)
    assert rule.accepts(eqn, 0) and not rule.accepts(eqn, 1)
    assert not rule.accepts(equation(name, "int32")[0], 0)


@pytest.mark.parametrize(
    ("index", "mode"),
    [
        ("uint8", "fill"),
        ("int8", "clip"),
        ("int16", "fill"),
        ("uint32", "fill"),
        ("uint32", "clip"),
    ],
)
def test_indices_of_any_dtype_are_read_as_the_model_reads_them(index, mode):
    name = "rows" if mode == "fill" else "rows, moved into the table"
    eqn, rule = equation(name, index=index)
    (h,), g = draw(eqn, name, (), "float32")
    h[:] = np.clip(h, 0, None) if index.startswith("u") else h
    h = h.astype(index)
    h[0, 0] = np.iinfo(index).max
    found = rule.gradient(eqn, 0, (), [jnp.asarray(h)], jnp.asarray(g)).weighted_sum(jnp.ones(B))
    truth, _ = gradients(eqn, (), [h], g)
    np.testing.assert_allclose(found, truth.sum(0), rtol=1e-5, atol=1e-6)


def gathered(table, indices, numbers, sizes):
    types = [jax.ShapeDtypeStruct(table, jnp.float32), jax.ShapeDtypeStruct(indices, jnp.int32)]
    (eqn,) = jax.make_jaxpr(lambda w, i: lax.gather(w, i, numbers, sizes))(*types).eqns
    return eqn


REFUSED = {
    "pieces of rows": ((7, 4), (5, 1), lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 3)),
    "several rows in a row": ((7, 4), (5, 1), lax.GatherDimensionNumbers((1, 2), (), (0,)), (2, 4)),
    "rows that stay": ((7, 4), (5, 1), lax.GatherDimensionNumbers((1, 2), (), (0,)), (1, 4)),
    "a table for each": (
        *((5, 7, 4), (5, 1)),
        lax.GatherDimensionNumbers((1,), (1,), (1,), (0,), (0,)),
        (1, 1, 4),
    ),
    "nothing picked": ((7, 4), (5, 0), lax.GatherDimensionNumbers((1, 2), (), ()), (7, 4)),
    "nothing there": ((7, 0), (5, 1), lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 0)),
    "nowhere": ((7, 4), (0, 1), lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_a_gather_of(name):
    assert not rule_for("gather").accepts(gathered(*REFUSED[name]), 0)


@pytest.mark.parametrize("sizes", [(2, 4), (1, 3), (7, 4)], ids=str)
def test_refuses_a_dynamic_slice_of_more_or_less_than_rows(sizes):
    eqn = jax.make_jaxpr(lambda w, i: lax.dynamic_slice(w, (i, i), sizes))(
        jnp.zeros((7, 4)), jnp.zeros((), np.int32)
    ).eqns[-1]
    assert eqn.primitive.name == "dynamic_slice"
    assert not rule_for("dynamic_slice").accepts(eqn, 0)
