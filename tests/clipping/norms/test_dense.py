"""The norm rule of matrix products, against the float64 gradient that it avoids."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bevel import precision
from bevel.clipping.coefficients import coefficients, tree_norm
from bevel.clipping.norms import rule_for
from bevel.clipping.options import Clip

B = 6


def product(h_contract, w_contract, weight=1):
    """dot_general of (h, w), the weight as operand number `weight`."""
    if weight == 1:
        return lambda h, w: lax.dot_general(h, w, ((h_contract, w_contract), ((), ())))
    return lambda h, w: lax.dot_general(w, h, ((w_contract, h_contract), ((), ())))


# name: (function of h and w, shape of h for one example, shape of w, operand that is the weight)
CASES = {
    "dot_general": {
        "vector": (product((0,), (0,)), (24,), (24, 32), 1),
        "one row": (product((1,), (0,)), (1, 24), (24, 32), 1),
        "one row, outer dimensions of one": (product((2,), (0,)), (1, 1, 24), (24, 3), 1),
        "vector weight": (product((0,), (0,)), (24,), (24,), 1),
        "outer product": (product((), ()), (1,), (32,), 1),
        "rows": (product((1,), (0,)), (5, 24), (24, 32), 1),
        "columns": (product((0,), (1,)), (24, 5), (32, 24), 1),
        "weight on the left": (product((0,), (1,), 0), (24, 5), (32, 24), 0),
        "one row, weight on the left": (product((0,), (1,), 0), (24,), (32, 24), 0),
        "two contracted": (product((1, 2), (1, 0)), (4, 6, 5), (5, 6, 32), 1),
        "two contracted, left": (product((2, 0), (1, 3), 0), (6, 4, 5), (8, 5, 4, 6), 0),
        "several free": (product((2,), (1,)), (2, 3, 24), (4, 24, 8), 1),
        "several free, left": (product((1,), (2,), 0), (2, 24, 3), (4, 8, 24), 0),
    }
}
NAMES = list(CASES["dot_general"])
DTYPES = ["float16", "bfloat16", "float32", "float64"]
rule = rule_for("dot_general")


def equation(name, dtype="float32"):
    fun, h, w, weight = CASES["dot_general"][name]
    types = [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in (h, w)]
    (eqn,) = jax.make_jaxpr(fun)(*types).eqns
    return eqn, weight


def dense(rows, inner, outer, dtype="float32"):
    types = [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in ((rows, inner), (inner, outer))]
    (eqn,) = jax.make_jaxpr(lambda h, w: h @ w)(*types).eqns
    return eqn, 1


def gradient(eqn, weight, h, g):
    """The float64 gradient of one example."""
    with jax.enable_x64(True):
        h, g = np.asarray(h).astype(np.float64), np.asarray(g).astype(np.float64)
        contracting, _ = eqn.params["dimension_numbers"]
        rows = [i for i in range(h.ndim) if i not in contracting[1 - weight]]
        w_aval = eqn.invars[weight].aval
        free = w_aval.ndim - len(contracting[weight])
        if weight == 0:  # the output has the weight's dimensions first
            g = np.moveaxis(g, range(free), range(-free, 0)) if free else g
        total = np.tensordot(h, g, (rows, range(len(rows))))
        # h's contracted dimensions in h's order, then the free ones of the weight in order
        places = dict(zip(contracting[1 - weight], contracting[weight], strict=True))
        order = [places[i] for i in sorted(places)]
        order += [i for i in range(w_aval.ndim) if i not in order]
        return np.transpose(total, np.argsort(order))


def draw(eqn, weight, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = eqn.invars[1 - weight].aval.shape, eqn.outvars[0].aval.shape
    scale = 2.0 ** rng.integers(-4, 5, size=B)
    stacks = [rng.normal(size=(B, *s)) * scale.reshape(-1, *[1] * len(s)) for s in shapes]
    return [x.astype(jnp.dtype(dtype)) for x in stacks]


def assert_contribution_is_bounded(eqn, weight, h, g, sharp=None):
    """Clips to several norms, and norms what is summed: sum_t h_t (x) fl(c g_t)."""
    h, g = jnp.asarray(h), jnp.asarray(g)
    norm = jax.jit(rule.norm, static_argnums=(0, 1))(eqn, weight, h, g)
    for limit in (1e-15, 0.37, 1e12):
        factor = coefficients(tree_norm([norm]), limit, Clip.checked(limit))
        dtype = precision.accumulation_dtype(g.dtype, factor.dtype)
        wide = g.astype(dtype) * jnp.expand_dims(factor.astype(dtype), tuple(range(1, g.ndim)))
        for example in range(len(h)):
            true = np.linalg.norm(gradient(eqn, weight, h[example], g[example]))
            clipped = np.linalg.norm(gradient(eqn, weight, h[example], wide[example]))
            assert clipped <= limit * (1 + 1e-15), (example, clipped / limit)
            if sharp is not None:
                assert clipped >= min(true, limit) / sharp, (example, clipped / limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_estimate_is_the_norm_of_the_gradient(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        eqn, weight = equation(name, dtype)
        assert rule.accepts(eqn, weight)
        h, g = draw(eqn, weight, dtype)
        norm = rule.norm(eqn, weight, jnp.asarray(h), jnp.asarray(g))
        truth = [np.linalg.norm(gradient(eqn, weight, *pair)) for pair in zip(h, g, strict=True)]
        assert norm.estimate.dtype == precision.accumulation_dtype(dtype)
        tolerance = 1e-13 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(norm.estimate, truth, rtol=tolerance)
        assert np.all(np.asarray(norm.upper) >= truth)
        assert np.all(np.asarray(norm.upper) <= 1.001 * np.array(truth))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_weighted_sum_is_the_gradient_of_the_batch(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        eqn, weight = equation(name, dtype)
        h, g = draw(eqn, weight, dtype, seed=1)
        wide = g.astype(precision.accumulation_dtype(dtype))
        total = rule.weighted_sum(eqn, weight, jnp.asarray(h), jnp.asarray(wide))
        truth = sum(gradient(eqn, weight, *pair) for pair in zip(h, g, strict=True))
        assert total.dtype == precision.accumulation_dtype(dtype)
        assert total.shape == eqn.invars[weight].aval.shape
        np.testing.assert_allclose(total, truth, rtol=1e-5, atol=1e-5 * np.abs(truth).max())


def test_the_reference_is_what_autodiff_gives():
    for name in NAMES:
        eqn, weight = equation(name)
        fun, _, w_shape, _ = CASES["dot_general"][name]
        h, g = (x[0] for x in draw(eqn, weight))
        _, pull = jax.vjp(lambda w, fun=fun, h=h: fun(h, w), jnp.ones(w_shape))
        truth = gradient(eqn, weight, h, g)
        np.testing.assert_allclose(pull(jnp.asarray(g))[0], truth, rtol=1e-4, atol=1e-4)


def ramp(rng, count, *shape):
    """Rows of equal direction but for noise."""
    return 1 + 1e-3 * rng.normal(size=(count, *shape))


# h (T, D) and g (T, K) of one example.
def cancelling(rng, t, d, k):
    h, g = rng.normal(size=(t, d)), np.tile(rng.normal(size=(1, k)), (t, 1))
    h[1::2] = -h[: t - t % 2 : 2]
    return h, g


def nearly_cancelling(rng, t, d, k):
    h, g = cancelling(rng, t, d, k)
    return h * (1 + 2.0**-18 * rng.integers(0, 4, size=(t, 1))), g


def cancelling_all_but_one(rng, t, d, k):
    h, g = cancelling(rng, t - 1, d, k)
    return np.concatenate([h, 1e-3 * rng.normal(size=(1, d))]), np.concatenate([g, g[:1]])


def rows_far_apart(rng, t, d, k):
    # The longest h meets a zero g and the longest g a zero h: what is left has small squares.
    h, g = np.zeros((t, d)), np.zeros((t, k))
    h[0], h[1], g[1], g[2] = 1e15, 1e4, 1e5, 1e15
    return h, g


def rows_far_apart_and_unlike(rng, t, d, k):
    h, g = np.zeros((t, d)), np.zeros((t, k))
    h[0, 0], g[0, 0], g[1, 0] = 2.0**-126, 1e28, 2.0**126
    return h, g


def opposite_scales(rng, t, d, k):
    return 1e30 * rng.normal(size=(t, d)), 1e-30 * rng.normal(size=(t, k))


def opposite_ends(rng, t, d, k):
    return 2.0**-125 * ramp(rng, t, d), 2.0**125 * ramp(rng, t, k)


def opposite_ends_turned(rng, t, d, k):
    return 2.0**125 * ramp(rng, t, d), 2.0**-125 * ramp(rng, t, k)


HOSTILE = {
    "equal rows": lambda rng, t, d, k: (ramp(rng, t, d), ramp(rng, t, k)),
    "just below a power of two": lambda rng, t, d, k: (
        np.full((t, d), 2 - 2.0**-23),
        np.full((t, k), 2 - 2.0**-23),
    ),
    "cancelling": cancelling,
    "nearly cancelling": nearly_cancelling,
    "cancelling but for one": cancelling_all_but_one,
    "rows far apart": rows_far_apart,
    "rows far apart, at the ends": rows_far_apart_and_unlike,
    "opposite scales": opposite_scales,
    "opposite ends": opposite_ends,
    "opposite ends, turned": opposite_ends_turned,
    "large": lambda rng, t, d, k: (1e15 * ramp(rng, t, d), 1e15 * ramp(rng, t, k)),
    "small": lambda rng, t, d, k: (1e-15 * ramp(rng, t, d), 1e-15 * ramp(rng, t, k)),
    "zero rows": lambda rng, t, d, k: (np.eye(t, d), np.roll(np.eye(t, k), 1, axis=0)),
    "zero": lambda rng, t, d, k: (np.zeros((t, d)), np.ones((t, k))),
}


@pytest.mark.parametrize("size", [(1, 24, 32), (5, 24, 32)], ids=["one row", "Gram"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_rows(name, size):
    eqn, weight = dense(*size)
    rng = np.random.default_rng(0)
    padded = (max(size[0], 3), *size[1:])
    h, g = (x[: size[0]] for x in HOSTILE[name](rng, *padded))
    h, g = (x.astype(np.float32)[None] for x in (h, g))
    assert_contribution_is_bounded(eqn, weight, h, g)


@pytest.mark.parametrize("name", ["opposite scales", "opposite ends", "opposite ends, turned"])
@pytest.mark.parametrize("size", [(1, 24, 32), (5, 24, 32)], ids=["one row", "Gram"])
def test_a_norm_within_range_is_found_whatever_the_scales(name, size):
    eqn, weight = dense(*size)
    h, g = (x.astype(np.float32) for x in HOSTILE[name](np.random.default_rng(0), *size))
    norm = rule.norm(eqn, weight, jnp.asarray(h)[None], jnp.asarray(g)[None])
    truth = np.linalg.norm(gradient(eqn, weight, h, g))
    np.testing.assert_allclose(norm.estimate, [truth], rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_contribution_is_bounded_in_every_dtype(dtype):
    with jax.enable_x64(dtype == "float64"):
        for size in ((1, 24, 32), (5, 24, 32)):
            eqn, weight = dense(*size, dtype)
            h, g = draw(eqn, weight, dtype, seed=2)
            assert_contribution_is_bounded(eqn, weight, h, g, sharp=1.005)
            h, g = cancelling(np.random.default_rng(3), *size)
            h, g = (x.astype(jnp.dtype(dtype))[None] for x in (h, g))
            assert_contribution_is_bounded(eqn, weight, h, g)


def most_rows(inner, outer):
    """The most rows with which the Gram form is taken."""
    return max(t for t in range(1, 400) if rule.accepts(*dense(t, inner, outer)))


@pytest.mark.parametrize("width", [64, 512])
def test_as_many_rows_as_are_accepted(width):
    rows = most_rows(width, width)
    assert rows > 4
    eqn, weight = dense(rows, width, width)
    rng = np.random.default_rng(4)
    for name in ("equal rows", "just below a power of two", "cancelling", "nearly cancelling"):
        h, g = (x.astype(np.float32)[None] for x in HOSTILE[name](rng, rows, width, width))
        assert_contribution_is_bounded(eqn, weight, h, g)
    # Rows of random directions are the ordinary case, and must not be overstated.
    h, g = (rng.normal(size=(1, rows, width)).astype(np.float32) for _ in range(2))
    assert_contribution_is_bounded(eqn, weight, h, g, sharp=1.005)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [(1, 8, 8), (3, 24, 32)], ids=["one row", "Gram"])
def test_a_non_finite_number_shows_in_the_norm(size, value):
    eqn, weight = dense(*size)
    h, g = draw(eqn, weight)
    h[1, 0, 0] = value
    g[2, 0, 0] = value
    h[3, 0, 0], g[3] = value, 0  # infinity times zero: the gradient is NaN
    norm = rule.norm(eqn, weight, jnp.asarray(h), jnp.asarray(g))
    for number in norm:
        np.testing.assert_array_equal(np.isfinite(number), [True, False, False, False, True, True])


def traced(fun, *types):
    types = [jax.ShapeDtypeStruct(*t) for t in types]
    return next(e for e in jax.make_jaxpr(fun)(*types).eqns if e.primitive.name == "dot_general")


def test_refuses_batch_dimensions():
    f32 = jnp.float32
    eqn = traced(lambda h, w: jnp.einsum("aij,ajk->aik", h, w), ((2, 1, 8), f32), ((2, 8, 9), f32))
    assert not any(rule.accepts(eqn, operand) for operand in (0, 1))


def test_refuses_integers():
    eqn = traced(lambda h, w: h @ w, ((1, 8), jnp.int32), ((8, 9), jnp.int32))
    assert not rule.accepts(eqn, 1)


@pytest.mark.parametrize("shape", [(0, 8, 9), (1, 0, 9), (1, 8, 0)], ids=str)
def test_refuses_empty_products(shape):
    assert not rule.accepts(*dense(*shape))


@pytest.mark.parametrize(
    "rows, inner, outer, taken",
    [
        (1, 1, 1, True),
        (2, 2, 2, False),
        (4, 8, 8, False),  # 4 * 16 == 64: no cheaper
        (3, 8, 8, True),
        (100, 64, 64, False),
        (64, 4, 4096, False),
        (300, 8192, 8192, False),  # cheaper, but its rounding would cost more than it saves
    ],
)
def test_takes_the_gram_form_where_it_is_cheaper_and_sharp(rows, inner, outer, taken):
    assert rule.accepts(*dense(rows, inner, outer)) == taken


def test_float64_is_sharp_with_more_rows():
    with jax.enable_x64(True):
        assert rule.accepts(*dense(300, 8192, 8192, "float64"))


def test_cancellation_is_capped():
    # The bound is at least the sum of the lengths of the rows over 128: rounding_bound needs it.
    from bevel.clipping.bounded import MAX_CANCELLATION

    eqn, weight = dense(4, 24, 32)
    h, g = (x.astype(np.float32) for x in cancelling(np.random.default_rng(5), 4, 24, 32))
    norm = rule.norm(eqn, weight, jnp.asarray(h)[None], jnp.asarray(g)[None])
    lengths = np.linalg.norm(h.astype(np.float64), axis=1) * np.linalg.norm(
        g.astype(np.float64), axis=1
    )
    assert float(norm.upper[0]) >= math.fsum(lengths) / MAX_CANCELLATION
