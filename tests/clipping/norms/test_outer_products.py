"""Gradients stored as two sides: the bounds of their norms hold for the actual contributions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bevel import precision
from bevel.clipping.accumulate.coefficients import coefficients, tree_norm
from bevel.clipping.bounded import MAX_CANCELLATION
from bevel.clipping.norms import gram, rule_for
from bevel.clipping.norms.outer_products import norm_of
from bevel.clipping.norms.registry import SEPARATE
from bevel.clipping.options import Clip
from bevel.clipping.program.equations import bind, body_of_call, evaluate

TF32 = "as TF32"  # float32 that a matrix unit rounds to 11 significant bits
BF16 = "bfloat16"  # as on an accelerator, where the scaled operand is rounded to 8 bits
# Compile quickly: the programs are small.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def dtype_of(kind):
    return jnp.dtype("float32" if kind == TF32 else kind)


def made(rule, eqn, operand, loops, h, g, kind):
    """The gradient that a rule makes, with matrices multiplied as in `kind`."""
    gradient = functools.partial(rule.gradient, eqn, operand, loops)
    use = jax.jit(gradient, compiler_options=QUICK)(h, g)
    use = jax.tree.map(np.asarray, use)
    changed = {
        TF32: {"roundoff": 2.0**-11, "mantissa": 10},
        BF16: {"roundoff": 2.0**-8, "scaled": jnp.dtype(BF16)},
    }.get(kind, {})
    return dataclasses.replace(use, multiplier=dataclasses.replace(use.multiplier, **changed))


def equation(fun, *types):
    (eqn,) = jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(*t) for t in types)).eqns
    return eqn


def dense(h, g, w, kind="float32", contract=((1,), (0,)), batch=((), ()), slices=0):
    """The use of a matrix of shape w, for h (B, slices..., own) and the cotangent g."""
    own = h.shape[1 + slices :], h.dtype
    eqn = equation(lambda h, w: lax.dot_general(h, w, (contract, batch)), own, (w, h.dtype))
    loops = tuple((SEPARATE, n) for n in h.shape[1 : 1 + slices])
    return made(rule_for("dot_general"), eqn, 1, loops, [h], g, kind)


def lookup(index, g, places, kind="float32"):
    """Rows of a table at index (B, T), with their cotangents g (B, T, K)."""
    index = index.astype(np.int32)
    numbers, table = lax.GatherDimensionNumbers((1,), (0,), (0,)), (places, g.shape[-1])
    types = (table, g.dtype), ((*index.shape[1:], 1), index.dtype)
    eqn = equation(lambda w, i: lax.gather(w, i, numbers, (1, table[1]), mode="clip"), *types)
    return made(rule_for("gather"), eqn, 0, (), [index[..., None]], g, kind)


# The actual contributions.


def in_float64(eqn, inputs):
    """Evaluates products and sums in float64, and everything else as in the program."""
    body = body_of_call(eqn)
    if body is not None:
        return evaluate(body.jaxpr, body.consts, inputs, in_float64)
    wide = [x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in inputs]
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        return bind(eqn, wide, preferred_element_type=np.dtype(np.float64))
    if name == "scatter-add":
        wanted = ("indices_are_sorted", "unique_indices", "mode")
        options = {name: params[name] for name in wanted}
        return [lax.scatter_add(*wide, params["dimension_numbers"], **options)]
    if name == "convert_element_type" and params["new_dtype"] == jnp.dtype("bfloat16"):
        inputs = [lax.reduce_precision(*inputs, 8, 7)]  # which the compiler cannot remove
    return bind(eqn, inputs)


SUMS = {}  # compiled once for equal programs


def contributions(use, factors, way, keep=None):
    """Each example's contribution to the sum, for coefficients (L, B): (L, B, operand...)."""
    alone = jax.tree.map(lambda x: np.asarray(x)[:, None], use)
    first = jax.tree.map(lambda x: x[0], (alone, factors[0, :, None]))
    program = jax.make_jaxpr(lambda use, c: use.weighted_sum(c, keep, way))(*first)

    def one(*leaves):
        (total,) = evaluate(program.jaxpr, program.consts, leaves, in_float64)
        return total

    with jax.enable_x64(True):
        each = jax.vmap(one)
        every = jax.jit(lambda leaves, c: jax.vmap(lambda c: each(*leaves, c))(c))
        every = SUMS.setdefault(str(program), every)
        return np.asarray(every(jax.tree.leaves(alone), factors[..., None]))


def lengths(x, axes):
    """Norms over all but the first axes."""
    return np.linalg.norm(x.reshape(*x.shape[:axes], -1), axis=-1)


@jax.jit
def coefficients_for(norm, steps, fixed):
    """Clip norms (L, B), of which `steps` are fractions of the norm, and the coefficients."""
    whole = tree_norm([norm])
    own = jnp.outer(steps, whole.upper)
    own = jnp.where(own < 1e38, own, 1)
    limits = jnp.concatenate([own, jnp.outer(fixed, jnp.ones_like(whole.upper))])
    coefficient = jax.vmap(lambda limit: coefficients(whole, limit, Clip(1.0)))
    return coefficient(limits), limits


def clipped(norms, uses, way, steps, summed):
    """For each norm: (norms of contributions, clip norms), both (L, B)."""
    roundoff = max(use.multiplier.roundoff for use in uses)
    if steps is None:  # for some of these, the product with a power of two rounds up
        steps = [*(0.5 * (1 + roundoff * np.arange(0, 3, 0.25))), 0.9, 1.0, 1.5]
    options = [np.asarray(x, norms[0].upper.dtype) for x in (steps, [1e-15, 0.37, 1e12])]
    pairs = [coefficients_for(norm, *options) for norm in norms]
    factors, limits = ([np.asarray(x) for x in part] for part in zip(*pairs, strict=True))
    each = sum(summed(use, np.concatenate(factors), way) for use in uses)
    return list(zip(np.split(lengths(each, 2), len(norms)), limits, strict=True))


@dataclasses.dataclass
class Found:
    """Norms by one way, scaled or not, and the norms of contributions clipped with them."""

    estimate: np.ndarray  # (B,)
    upper: np.ndarray  # (B,)
    sound: np.ndarray  # (B,), all True if scaled
    added: np.ndarray  # (L, B)
    limits: np.ndarray  # (L, B)

    def assert_bounded(self, example):
        if self.sound[example]:
            added, limits = self.added[:, example], self.limits[:, example].astype(np.float64)
            assert np.all(added <= limits * (1 + 1e-13)), (added, limits)


@functools.partial(jax.jit, static_argnames="ways", compiler_options=QUICK)
def all_norms(uses, ways):
    return {(way, scaled): norm_of(uses, way, scaled) for way in ways for scaled in (True, False)}


def examined(uses, ways, aligned=None, steps=None, summed=contributions):
    """`Found` by (way, scaled)."""
    measured = all_norms(uses if aligned is None else aligned, tuple(ways))
    result = {}
    for way in ways:
        keys = [(way, scaled) for scaled in (True, False)]
        parts = clipped([measured[key].norm for key in keys], uses, way, steps, summed)
        for key, (added, limits) in zip(keys, parts, strict=True):
            (estimate, upper), sound = jax.tree.map(np.asarray, measured[key])
            result[key] = Found(estimate, upper, sound | key[1], added, limits)
    return result


# Rows with difficult norms: h (T, D) and g (T, K) of one example.


def ramp(rng, *shape):
    """Rows of equal direction, up to noise."""
    return 1 + 1e-3 * rng.normal(size=shape)


def cancelling(rng, t, d, k):
    h, g = rng.normal(size=(t, d)), np.tile(rng.normal(size=(1, k)), (t, 1))
    h[1::2] = -h[: t - t % 2 : 2]
    return h, g


def nearly_cancelling(rng, t, d, k):
    h, g = cancelling(rng, t, d, k)
    return h * (1 + 2.0**-18 * rng.integers(0, 4, size=(t, 1))), g


def cancelling_but_for_one(rng, t, d, k):
    h, g = cancelling(rng, t, d, k)
    h[-1] *= 1e-3
    return h, g


def far_apart(first, second):
    """Large rows of h and g meet zeros, and the rows that meet each other are small."""

    def rows(rng, t, d, k):
        third = max(1, t // 3)
        h, g = np.full((t, d), second[0]), np.full((t, k), second[1])
        h[0], g[:third] = first[0], 0
        if t > 2:
            h[-third:], g[-1] = 0, first[1]
        return h, g

    return rows


def constant(left, right):
    return lambda rng, t, d, k: (left * ramp(rng, t, d), right * ramp(rng, t, k))


def exact(left, right):
    return lambda rng, t, d, k: (np.full((t, d), left), np.full((t, k), right))


def at_the_ends(rng, t, d, k):
    h, g = np.zeros((t, d)), np.zeros((t, k))
    h[0, 0], g[0, 0], g[-1, 0] = 2.0**-126, 1e28, 2.0**126
    return h, g


HOSTILE = {
    "ordinary": lambda rng, t, d, k: (rng.normal(size=(t, d)), rng.normal(size=(t, k))),
    "equal rows": constant(1, 1),
    "ones": exact(1, 1),
    "just below a power of two": exact(2 - 2.0**-23, 2 - 2.0**-23),
    "just above a power of two": exact(1 + 2.0**-7, 1 + 2.0**-23),
    "rounded down": exact(1 + 2.0**-11 - 2.0**-23, 1),
    "rounded down, turned": exact(1, 1 + 2.0**-11 - 2.0**-23),
    "cancelling": cancelling,
    "nearly cancelling": nearly_cancelling,
    "cancelling but for one": cancelling_but_for_one,
    "far apart": far_apart((1e15, 1e15), (1e4, 1e5)),
    "far apart, powers of two": far_apart((1, 1), (2.0**-33, 1)),
    "far apart, powers of two, turned": far_apart((1, 1), (1, 2.0**-33)),
    "far apart, small": far_apart((2.0**-29, 2.0**-29), (2.0**-63.5, 1)),
    "far apart, small, turned": far_apart((2.0**-29, 2.0**-29), (1, 2.0**-63.5)),
    "at the ends": at_the_ends,
    "opposite scales": constant(1e30, 1e-30),
    "opposite ends": constant(2.0**-125, 2.0**125),
    "opposite ends, turned": constant(2.0**125, 2.0**-125),
    "large": constant(1e15, 1e15),
    "small": constant(1e-15, 1e-15),
    "squares too small": exact(2.0**-32, 2.0**-32),
    "squares of squares too small": exact(1.5 * 2.0**-33, 1),
    "squares of squares too small, turned": exact(1, 1.5 * 2.0**-33),
    "squares too large": constant(2.0**31, 2.0**31),
    "rows without a partner": lambda rng, t, d, k: (
        np.eye(t, d),
        np.roll(np.eye(t, k), 1, axis=0),
    ),
    "zero": exact(0, 1),
    "zero, turned": exact(1, 0),
}
IN_RANGE = ("ordinary", "equal rows", "opposite scales", "opposite ends", "opposite ends, turned")


@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int
    h: int | None  # entries; None for a lookup
    g: int
    slices: int | None = None
    pieces: int = 1

    @property
    def ways(self):
        if self.h is None or self.pieces > 1:
            return ("gram",)
        return ("outer", "gram", "product") if self.rows == 1 else ("gram", "product")


SHAPES = {
    "one row": Shape(1, 16, 24),
    "rows": Shape(5, 8, 6),
    "slices of one row": Shape(1, 8, 6, slices=3),
    "slices": Shape(6, 2, 1, slices=3),
    "lookup": Shape(6, None, 6),
    "slices in pieces": Shape(4, 6, 8, slices=2, pieces=4),
}
INDEX = np.array([0, 0, 2, 2, 1, 1])  # pairs of rows have the same index
TABLE = [
    ("one row", "float16"),
    ("rows", "float32"),
    ("rows", BF16),
    ("rows", TF32),
    ("slices of one row", BF16),
    ("slices of one row", "float64"),
    ("slices", "float32"),
    ("slices", BF16),
    ("lookup", BF16),
    ("slices in pieces", BF16),
]
table = pytest.mark.parametrize(("shape", "kind"), TABLE)


@functools.cache
def sides(shape, kind):
    """h and g (B, slices, rows, entries) of every name, in the dtype of the kind."""
    shape, rng = SHAPES[shape], np.random.default_rng(0)
    slices, entries = shape.slices or 1, shape.h or shape.g
    top = float(jnp.finfo(dtype_of(kind)).max)
    both = [[], []]
    for make in HOSTILE.values():
        rows = make(rng, max(slices * shape.rows, 2), entries, shape.g)
        for side, x in zip(both, rows, strict=True):
            x = np.clip(x[: slices * shape.rows], -top, top)
            side.append(x.reshape(slices, shape.rows, -1))
    return [np.stack(side).astype(dtype_of(kind)) for side in both]


def use_of(shape, kind, h, g):
    shape = SHAPES[shape]
    if shape.slices is None:
        h, g = h[:, 0], g[:, 0]
    if shape.h is None:
        return lookup(np.tile(INDEX, (len(h), 1)), h, 3, kind)
    use = dense(h, g, (shape.h, shape.g), kind, slices=h.ndim - 3)
    return dataclasses.replace(use, pieces=shape.pieces)


@functools.cache
def hostile(shape, kind):
    """The results for every name at once."""
    with jax.enable_x64(kind == "float64"):
        return examined([use_of(shape, kind, *sides(shape, kind))], SHAPES[shape].ways)


def taken(x, kind):
    """`x` in float64, rounded as the matrix unit rounds it."""
    if kind != TF32:
        return x.astype(np.float64)
    part, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(part * 2.0**11) / 2.0**11, exponent)


@functools.cache
def truths(shape, kind):
    """The norms of the gradients in float64, and their norms without any cancellation."""
    h, g = (taken(x, kind) for x in sides(shape, kind))
    if SHAPES[shape].h is None:
        h, g = np.broadcast_to(np.eye(3)[INDEX], (*h.shape[:3], 3)), h
    each = np.linalg.norm(h, axis=-1) * np.linalg.norm(g, axis=-1)
    whole = lengths(np.einsum("bstd,bstk->bsdk", h, g), 1)
    return whole, np.linalg.norm(np.sum(each, axis=-1), axis=-1)


@table
@pytest.mark.parametrize("name", HOSTILE)
def test_contribution_is_bounded_as_it_is_summed(name, shape, kind):
    for found in hostile(shape, kind).values():
        found.assert_bounded(list(HOSTILE).index(name))


@table
def test_estimate_is_the_norm_and_the_bound_is_sharp(shape, kind):
    tolerance = 1e-13 if kind == "float64" else 1e-5
    slack = {BF16: 1.02, TF32: 1.003}.get(kind, 1.001)
    example, wide = list(HOSTILE).index("ordinary"), precision.accumulation_dtype(dtype_of(kind))
    truth = truths(shape, kind)[0][example]
    for found in hostile(shape, kind).values():
        assert found.estimate.dtype == found.upper.dtype == wide and found.sound[example]
        np.testing.assert_allclose(found.estimate[example], truth, rtol=tolerance)
        assert truth <= found.upper[example] <= truth * slack
        goal = np.minimum(found.limits[:, example].astype(np.float64), truth)
        assert np.all(found.added[:, example] >= goal / slack**2)


@pytest.mark.parametrize(("shape", "kind"), [row for row in TABLE if row[0] != "lookup"])
def test_a_norm_within_range_is_found_whatever_the_scales(shape, kind):
    for name in IN_RANGE:
        example = list(HOSTILE).index(name)
        truth = truths(shape, kind)[0][example]
        for (_, scaled), found in hostile(shape, kind).items():
            if scaled:
                np.testing.assert_allclose(found.estimate[example], truth, rtol=1e-4, err_msg=name)


@table
def test_cancellation_is_capped(shape, kind):
    # For each slice, the bound is at least the sum of the lengths of the rows over 128, as
    # rounding_bound needs.
    _, absolute = truths(shape, kind)
    for found in hostile(shape, kind).values():
        assert np.all((found.upper * (1 + 1e-6) >= absolute / MAX_CANCELLATION) | ~found.sound)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("shape", "kind"), [row for row in TABLE if row[0] != "lookup"])
def test_a_non_finite_number_shows_in_the_norm(shape, kind, value):
    example = list(HOSTILE).index("ordinary")
    h, g = (np.repeat(x[example : example + 1], len(HOSTILE), 0) for x in sides(shape, kind))
    h[1, 0, 0, 0] = value
    g[2, 0, 0, 0] = value
    h[3, 0, 0, 0], g[3] = value, 0  # infinity times zero: the gradient is NaN
    finite = ~np.isin(np.arange(len(h)), [1, 2, 3])
    with jax.enable_x64(kind == "float64"):
        found = all_norms([use_of(shape, kind, h, g)], SHAPES[shape].ways)
    for norm, sound in found.values():
        np.testing.assert_array_equal(np.isfinite(norm.estimate), finite)
        np.testing.assert_array_equal(np.isfinite(norm.upper), finite)
        np.testing.assert_array_equal(sound, finite)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_non_finite_number_at_a_place_of_a_table_shows_in_the_norm(value):
    h, g = (x.copy() for x in sides("lookup", BF16))
    h[:], h[1, 0, 0, 0] = 1, value
    norm, sound = all_norms([use_of("lookup", BF16, h, g)], ("gram",))["gram", True]
    assert list(np.flatnonzero(~np.isfinite(norm.upper))) == [1]
    assert list(np.flatnonzero(~np.isfinite(norm.estimate))) == [1]
    assert list(np.flatnonzero(~np.asarray(sound))) == [1]


@pytest.mark.parametrize("shape", ["slices", "lookup"])
def test_unwanted_examples_add_nothing_whatever_they_hold(shape):
    h, g = (x[:4].copy() for x in sides(shape, "float32"))
    h[0], g[1], h[3, 0, 0, 0] = np.nan, np.inf, -np.inf
    use, keep = use_of(shape, "float32", h, g), np.array([False, False, True, False])
    if SHAPES[shape].h is None:
        keep[1] = True
    total = use.weighted_sum(jnp.full(4, 0.5), jnp.asarray(keep))
    wanted = use_of(shape, "float32", h[keep], g[keep]).weighted_sum(jnp.full(keep.sum(), 0.5))
    np.testing.assert_allclose(total, wanted, rtol=1e-6)


# The scales of h and g. The norm is always in range.
SCALES = [
    *((1, 1), (100, 4e-13), (2.0**-39, 2.0**-39), (2.0**38, 2.0**38), (2.0**-41, 2.0**-41)),
    *((1e30, 1e-30), (1e-30, 1e30), (1e-15, 1e-15), (1e15, 1e15)),
]


def test_norm_of_long_vectors_is_found_whatever_the_scales():
    rng = np.random.default_rng(5)
    h, g = rng.normal(size=(len(SCALES), 1, 5000)), rng.normal(size=(len(SCALES), 1, 4100))
    h, g = (
        x * np.array(s)[:, None, None]
        for x, s in zip((h, g), zip(*SCALES, strict=True), strict=True)
    )
    h, g = h.astype(np.float32), g.astype(np.float32)
    norm, _ = dense(h, g, (5000, 4100)).norm("outer")
    truth = lengths(h.astype(np.float64), 1) * lengths(g.astype(np.float64), 1)
    np.testing.assert_allclose(norm.estimate, truth, rtol=1e-4)
    assert np.all(norm.upper >= truth) and np.all(norm.upper <= 1.005 * truth)


@pytest.mark.parametrize(
    ("way", "slices", "rows", "pieces"),
    [("gram", 256, 96, 1), ("product", 256, 96, 1), ("gram", None, 560, 8)],
)
def test_rows_of_random_directions_are_not_overstated(way, slices, rows, pieces):
    rng = np.random.default_rng(6)
    lead = (1, rows) if slices is None else (1, slices, rows)
    h, g = (rng.normal(size=(*lead, 16)).astype(np.float32) for _ in range(2))
    use = dataclasses.replace(dense(h, g, (16, 16), slices=len(lead) - 2), pieces=pieces)
    norm, _ = use.norm(way)
    assert norm.upper[0] <= 1.01 * norm.estimate[0]


@pytest.mark.parametrize("turned", [False, True])
def test_many_values_that_lean_to_one_side_are_not_overstated(turned):
    rng = np.random.default_rng(7)
    h = jnp.asarray(0.5 + rng.normal(size=(1, 1024, 512)), jnp.bfloat16)
    g = jnp.asarray(rng.normal(size=(1, 1024, 256)), jnp.bfloat16)
    use = dense(h, g, (512, 256), BF16)
    use = use.with_sides_swapped() if turned else use
    assert use.scales_left("gram") != turned  # the values, although they are longer
    wide = [np.asarray(x, np.float64) for x in (h, g)]
    truth = np.linalg.norm(np.einsum("btd,btk->dk", *wide))
    norm, _ = use.norm("gram")
    assert truth <= norm.upper[0] <= (1 + gram.WORST_SLACK) * truth
    factors = np.asarray(truth / norm.upper, np.float32)[None]
    assert 0.95 * truth <= lengths(contributions(use, factors, "gram"), 2)[0, 0] <= truth


@pytest.mark.parametrize("way", ["gram", "product"])
def test_on_a_cpu_the_slack_of_bfloat16_is_that_of_float32(way):
    rng = np.random.default_rng(8)
    h = jnp.asarray(0.5 + rng.normal(size=(1, 256, 64)), jnp.bfloat16)
    g = jnp.asarray(rng.normal(size=(1, 256, 32)), jnp.bfloat16)
    (eqn,) = jax.make_jaxpr(lambda h, w: h @ w)(h[0], jnp.ones((64, 32), h.dtype)).eqns
    use = rule_for("dot_general").gradient(eqn, 1, (), [h], g)
    wide = [np.asarray(x, np.float64) for x in (h, g)]
    truth = np.linalg.norm(np.einsum("btd,btk->dk", *wide))
    norm, _ = use.norm(way)
    assert truth <= norm.upper[0] <= 1.001 * truth
    factors = np.asarray(0.7 * truth / norm.upper, np.float32)[None]
    added = lengths(contributions(use, factors, way), 2)[0, 0]
    assert 0.699 * truth <= added <= 0.7 * truth


@pytest.mark.parametrize("way", ["gram", "product"])
def test_what_a_coefficient_makes_too_small_for_a_float_is_bounded(way):
    # Rows that cancel each other, one of which underflows when multiplied by the coefficient.
    h = np.float32([[[0.5 + 2.0**-7], [-0.5 + 2.0**-7]]])
    use = dense(h, np.full((1, 2, 1), 2.0**127, np.float32), (1, 1))
    limits = np.geomspace(2.0**-5, 2.0**-3, 200).astype(np.float32)
    factors, limits = coefficients_for(use.norm(way).norm, np.zeros(0, np.float32), limits)
    added = lengths(contributions(use, np.asarray(factors), way, keep=jnp.ones(1, bool)), 2)
    assert np.all(added <= np.asarray(limits, np.float64)), np.max(added / limits)


def test_vectors_are_padded_to_even_lengths_without_a_trace():
    rng = np.random.default_rng(7)
    h, g = (rng.normal(size=(2, 3, n)).astype(np.float32) for n in (1025, 6))
    use, factor = dense(h, g, (1025, 6)), jnp.array([1.0, 0.5])
    assert use.padded().left.values.shape[-1] == 1032
    truth = lengths(np.einsum("btd,btk->bdk", *(x.astype(np.float64) for x in (h, g))), 1)
    np.testing.assert_allclose(use.padded().norm("gram").norm.estimate, truth, rtol=1e-5)
    for short in (use, lookup(np.array([[0, 2, 2], [1, 1, 1]]), h, 3)):
        total, expected = (x.weighted_sum(factor) for x in (short.padded(), short))
        assert total.shape == expected.shape
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)


MANY = ("ordinary", "equal rows", "just below a power of two", "cancelling", "nearly cancelling")


def test_many_rows_and_entries():
    rows, width = 48, 192
    rng = np.random.default_rng(4)
    pairs = [HOSTILE[name](rng, rows, width, width) for name in MANY]
    h, g = (np.stack(x).astype(np.float32) for x in zip(*pairs, strict=True))
    found = examined([dense(h, g, (width, width))], ("gram", "product"), steps=[0.5, 0.9, 1])
    truth = lengths(np.einsum("btd,btk->bdk", *(x.astype(np.float64) for x in (h, g))), 1)
    for norm in found.values():
        for example in range(len(MANY)):
            norm.assert_bounded(example)
        # Rows of random directions are the usual case, and must not be overstated.
        assert np.all(norm.upper[:2] <= 1.005 * truth[:2])


# Several uses of one parameter w (D, K), each with rows L (B, T, D) and R (B, T, K).
D, K = 5, 4


def places_of(left):
    return np.argmax(left, axis=-1)


def in_two(x):
    return x.reshape(x.shape[0], 2, x.shape[1] // 2, *x.shape[2:])


# name: (the use, the dimension of w for each of its dimensions)
USES = {
    "h w": (lambda left, right, kind: dense(left, right, (D, K), kind), (0, 1)),
    "h w, in two": (
        lambda left, right, kind: dense(
            in_two(left), in_two(right), (D, K), kind, contract=((2,), (0,))
        ),
        (0, 1),
    ),
    "h w^T": (
        lambda left, right, kind: dense(right, left, (D, K), kind, contract=((1,), (1,))),
        (0, 1),
    ),
    "h (w^T)": (lambda left, right, kind: dense(right, left, (K, D), kind), (1, 0)),
    "w[i]": (lambda left, right, kind: lookup(places_of(left), right, D, kind), (0, 1)),
}
# name: (uses and their numbers of rows, the kind of each, pieces)
JOINED = {
    "twice": ((("h w", 4), ("h w", 2)), ("float32",) * 2, 1),
    "there and back": ((("h w, in two", 4), ("h w^T", 4)), ("float32", BF16), 1),
    "transposed": ((("h (w^T)", 4), ("h w", 4)), (TF32,) * 2, 2),
    "embedding and head": ((("w[i]", 4), ("h w^T", 4)), (BF16,) * 2, 1),
    "head and embedding": ((("h (w^T)", 4), ("w[i]", 4)), ("float32",) * 2, 2),
    "two embeddings and a head": ((("w[i]", 4), ("w[i]", 3), ("h w^T", 3)), (TF32,) * 3, 1),
}
# Scales of the rows of each use.
SIZES = [
    (1, 1, 1),
    (1, 2.0**-40, 1),
    (2.0**-70, 2.0**50, 2.0**10),
    (2.0**-33, 1, 2.0**-66),
    (0, 1, 0),
    (1, 0, 0),
]
CANCELLING = [0, 2.0**-6]  # the fraction of the first use that the second one leaves


def rows_of_uses(name):
    """L and R of each use: with different scales, then such that the second cancels the first."""
    rng = np.random.default_rng(0)
    names, kinds, _ = JOINED[name]
    drawn, own = [], len(SIZES)
    for number, (use, rows) in enumerate(names):
        left, right = rng.normal(size=(8, rows, D)), rng.normal(size=(8, rows, K))
        unit = np.eye(D)[rng.integers(0, D, size=(8, rows))]
        if use == "w[i]":
            left = unit
        elif any(use == "w[i]" for use, _ in names):
            left[own:] = unit[own:]
        right[:own] *= np.array([sizes[number] for sizes in SIZES])[:, None, None]
        if number == 1:
            count = min(rows, drawn[0][0].shape[1])
            for example, rest in enumerate(CANCELLING, own):
                left[example, :count] = drawn[0][0][example, :count]
                right[example, :count] = -drawn[0][1][example, :count] * (1 - rest)
        if number == 2:
            right[own:] = 0
        drawn.append((left, right))
    dtypes = map(dtype_of, kinds)
    return [[x.astype(d) for x in pair] for pair, d in zip(drawn, dtypes, strict=True)]


def aligned(uses, names):
    """With the sides of all uses in the dimensions of w."""
    named = [use.with_dims(USES[name][1]) for use, name in zip(uses, names, strict=True)]
    first = set(named[0].left_dims)
    return [use if set(use.left_dims) == first else use.with_sides_swapped() for use in named]


@functools.cache
def joined(name):
    """The results for the uses together, and the norms of their gradients in float64."""
    names, kinds, pieces = JOINED[name]
    names, rows = [use for use, _ in names], rows_of_uses(name)
    uses = [USES[u][0](*pair, k) for u, pair, k in zip(names, rows, kinds, strict=True)]
    uses = [dataclasses.replace(use, pieces=pieces) for use in uses]
    order = {id(use): USES[name][1] for use, name in zip(uses, names, strict=True)}

    def summed(use, factors, way):
        return np.transpose(contributions(use, factors, way), (0, 1, *np.add(order[id(use)], 2)))

    ways = ("gram",) if "w[i]" in names or pieces > 1 else ("gram", "product")
    found = examined(uses, ways, aligned(uses, names), summed=summed)
    wide = [[taken(x, kind) for x in pair] for pair, kind in zip(rows, kinds, strict=True)]
    truth = lengths(sum(np.einsum("btd,btk->bdk", *pair) for pair in wide), 1)
    each = [np.prod([np.linalg.norm(x, axis=-1) for x in pair], axis=0) for pair in wide]
    return found, truth, sum(x.sum(axis=-1) for x in each)


@pytest.mark.parametrize("name", JOINED)
def test_norm_of_several_uses_is_that_of_the_sum_of_their_gradients(name):
    found, truth, absolute = joined(name)
    for norm in found.values():
        off = np.abs(norm.estimate - truth) <= 1e-5 * truth + 1e-3 * absolute
        assert np.all(off | ~norm.sound)
        np.testing.assert_allclose(norm.estimate[0], truth[0], rtol=1e-5)
        assert norm.sound[0] and norm.upper[0] <= 1.03 * truth[0]


@pytest.mark.parametrize("name", JOINED)
def test_contribution_of_several_uses_is_bounded(name):
    found, truth, absolute = joined(name)
    for norm in found.values():
        for example in range(len(truth)):
            norm.assert_bounded(example)
        enough = norm.upper * (1 + 1e-6) >= np.maximum(truth, absolute / MAX_CANCELLATION)
        assert np.all(enough | ~norm.sound)


def test_norm_of_two_uses_with_heads():
    rng, heads = np.random.default_rng(8), ((0,), (0,))
    left, right = (rng.normal(size=(2, 2, 3, 4, n)).astype(np.float32) for n in (D, K))
    uses = [
        dense(left[0], right[0], (3, D, K), contract=((2,), (1,)), batch=heads),
        dense(right[1], left[1], (3, D, K), contract=((2,), (2,)), batch=heads),
    ]
    uses = [uses[0].with_dims(range(3)), uses[1].with_dims(range(3)).with_sides_swapped()]
    truth = np.einsum("ubstd,ubstk->bsdk", *(x.astype(np.float64) for x in (left, right)))
    norm, sound = norm_of(uses, "gram")
    np.testing.assert_allclose(norm.estimate, lengths(truth, 1), rtol=1e-5)
    assert np.all(sound) and np.all(norm.upper >= lengths(truth, 1))
