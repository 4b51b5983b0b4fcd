"""Norms of materialised gradients on hostile inputs, against exact sums of squares."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bevel.clipping.norms.materialised as module
from bevel import precision
from bevel.clipping.norms.materialised import (
    ONE_STAGE,
    materialised_norm,
    quick_norm,
    roundings,
    staged_sum,
)

TINY = float(np.finfo(np.float32).tiny)
# The bound may exceed the norm by this factor in any shape. More would waste the clip norm.
SHARP = 1.005

kept = jax.jit(materialised_norm)


@pytest.fixture(params=["one device", "mesh"])
def place(request, monkeypatch):
    """The norms on one device, or on a mesh, where sums are staged differently."""
    cached = quick_norm, module.sum_of_squares
    for function in cached:
        function.clear_cache()
    monkeypatch.setattr(module, "on_one_device", lambda: request.param == "one device")
    yield jax.jit(lambda x: materialised_norm.__wrapped__(x))
    for function in cached:
        function.clear_cache()


def exact_norm(x):
    """The norm of an array of at most 53 bits, squares exact in long double where they matter."""
    x = np.asarray(x).astype(np.float64).ravel()
    top = float(np.max(np.abs(x), initial=0.0))
    if top == 0 or not math.isfinite(top):
        return top
    scale = 2.0 ** -math.frexp(top)[1]
    if x.size <= 2**18:
        squares = (x * scale).astype(np.longdouble) ** 2
        return float(np.sqrt(np.sum(squares)) / scale)
    return float(math.sqrt(np.sum((x * scale) ** 2)) / scale)


def assert_bounds(gradient, sharp=SHARP, kept=kept):
    """For every example, the estimate is close and the bound is never below the norm."""
    norm = kept(jnp.asarray(gradient))
    for estimate, upper, row in zip(*map(np.asarray, norm), np.asarray(gradient), strict=True):
        truth = exact_norm(row)
        assert float(upper) >= truth
        assert float(upper) <= truth * sharp
        assert abs(float(estimate) - truth) <= float(upper) - truth + truth * (sharp - 1)


def with_top(rng, shape, low, high):
    """Normal numbers times powers of two between 2^low and 2^high, entry by entry."""
    scale = 2.0 ** rng.uniform(low, high, size=shape)
    return (rng.normal(size=shape) * scale).astype(np.float32)


HOSTILE = {
    "ones": lambda rng, n: np.ones(n),
    "overflowing squares": lambda rng, n: 1e30 * rng.normal(size=n),
    "underflowing squares": lambda rng, n: 1e-30 * rng.normal(size=n),
    "huge and tiny": lambda rng, n: with_top(rng, n, -120, 100),
    "one huge, many tiny": lambda rng, n: np.where(np.arange(n) == n // 2, 1e20, 1e-20),
    "one, then squares that a sum loses": lambda rng, n: np.where(np.arange(n) == 0, 1.0, 2.4e-4),
    "smallest normal": lambda rng, n: np.full(n, TINY),
    "just below powers of two": lambda rng, n: np.full(n, np.nextafter(np.float32(2), 1)),
    "just above powers of two": lambda rng, n: np.full(n, np.nextafter(np.float32(1), 2)),
    "one entry": lambda rng, n: np.where(np.arange(n) == n - 1, -3e-7, 0.0),
    "zeros": lambda rng, n: np.zeros(n),
}


@functools.cache
def hostile(size):
    rng = np.random.default_rng(size)
    return np.stack([make(rng, size) for make in HOSTILE.values()]).astype(np.float32)


@pytest.mark.parametrize(
    "shape",
    [(1,), (2,), (3,), (64, 64), (4097,), (97, 101), (2, 3, 5, 7, 11), (50257,), (128, 3, 43)],
    ids=str,
)
def test_bound_of_hostile_gradients(shape, place):
    assert_bounds(hostile(math.prod(shape)).reshape(-1, *shape), kept=place)


def test_scalars_and_empty_gradients():
    assert_bounds(hostile(1).reshape(-1))
    for shape in ((3, 0), (0, 4), (2, 5, 0)):
        norm = materialised_norm(jnp.zeros(shape))
        assert norm.estimate.shape == norm.upper.shape == shape[:1]
        assert not np.any(np.asarray(norm.upper))


@pytest.mark.parametrize("size", [2**25], ids=str)
def test_a_long_sum_does_not_stall(size, place):
    # One float32 counter stops at 2^24. The compiler must not merge the stages.
    norm = place(jnp.ones((1, size), jnp.float32))
    truth = math.sqrt(size)
    assert abs(float(norm.estimate[0]) - truth) <= 1e-5 * truth
    assert truth <= float(norm.upper[0]) <= SHARP * truth


@pytest.mark.parametrize(
    "shape",
    [
        (2**25,),
        (2**25 + 1,),  # a model flattened into one vector of odd length
        (10**6 + 3,),
        (30522, 1024),
        (50257, 768),
        (128257, 4096),
        (250002, 1024),
        (3, 3, 512, 512),
        (2, 3, 5, 7, 11, 13),
    ],
    ids=str,
)
def test_slack_does_not_waste_the_clip_norm(shape, place):
    assert precision.rounding_growth(roundings(shape) + 4) <= SHARP - 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype):
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 300)), dtype)
        norm = materialised_norm(x)
        assert norm.estimate.dtype == norm.upper.dtype == precision.accumulation_dtype(dtype)
        for upper, row in zip(np.asarray(norm.upper), np.asarray(x), strict=True):
            truth = exact_norm(row)
            assert truth <= float(upper) <= truth * (1 + 1e-4)


@pytest.mark.parametrize("top", [1e-300, 1e-160, 1e160, 1e300])
def test_float64_squares_neither_overflow_nor_underflow(top):
    with jax.enable_x64(True):
        x = top * np.random.default_rng(0).normal(size=(3, 40))
        norm = materialised_norm(jnp.asarray(x))
        for upper, row in zip(np.asarray(norm.upper), x, strict=True):
            assert exact_norm(row) <= float(upper) <= exact_norm(row) * (1 + 1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_subnormals_as_the_sum_sees_them(dtype):
    # A processor that reads subnormal numbers as zero does so in products too. The bound must cover
    # the product of the gradient with a coefficient.
    tiny = float(jnp.finfo(dtype).smallest_subnormal)
    x = (tiny * np.arange(1, 65, dtype=np.float64)[None] * [[1], [-1]]).astype(jnp.dtype(dtype))
    seen = jax.jit(lambda x, c: x.astype(jnp.float32) * c)(jnp.asarray(x), 2.0**30)
    norm = kept(jnp.asarray(x))
    for upper, row in zip(np.asarray(norm.upper), np.asarray(seen), strict=True):
        assert float(upper) >= exact_norm(row) / 2.0**30


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [3, 5000])
def test_a_non_finite_entry_shows_in_the_norm(value, size):
    x = np.full((3, size), 1e-30, np.float32)
    x[1, size // 2] = value
    norm = kept(jnp.asarray(x))
    for number in norm:
        assert not np.isfinite(number[1])
        assert np.all(np.isfinite(np.asarray(number)[[0, 2]]))


def test_a_norm_that_no_float_holds_is_infinite():
    norm = kept(jnp.full((1, 64), 3e38, jnp.float32))
    assert np.isinf(norm.upper[0])


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(1, 24), min_size=1, max_size=4),
    low=st.integers(-100, 100),
    spread=st.integers(0, 60),
    seed=st.integers(0, 2**16),
)
def test_any_shape_any_scale(shape, low, spread, seed):
    rng = np.random.default_rng(seed)
    assert_bounds(with_top(rng, (2, *shape), low, min(low + spread, 100)), sharp=1.01)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(1, 40), min_size=1, max_size=3), seed=st.integers(0, 9))
def test_staged_sum_counts_its_roundings(place, shape, seed):
    x = np.random.default_rng(seed).uniform(0, 1, size=(2, *shape)).astype(np.float32)
    total, terms = jax.jit(lambda x: staged_sum(x))(jnp.asarray(x))
    truth = np.array([math.fsum(row.ravel().astype(np.float64)) for row in x])
    error = np.abs(np.asarray(total) - truth)
    assert np.all(error <= precision.rounding_growth(int(terms)) * truth)


@pytest.mark.parametrize("shape", [(2**20,), (50257, 24), (3, 3, 64, 128)])
def test_no_sum_is_long(shape, place):
    """The bound counts the actual additions: each sum is short, also after compilation."""
    x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    program = jax.make_jaxpr(lambda x: module.sum_of_squares.__wrapped__(x))(x)
    sums = [e for e in program.eqns if e.primitive.name == "reduce_sum"]
    lengths = [math.prod(e.invars[0].aval.shape[i] for i in e.params["axes"]) for e in sums]
    assert max(lengths) <= ONE_STAGE
    assert sum(lengths) <= roundings(shape)
    text = place.lower(x).compile().as_text()
    added = [line for line in text.splitlines() if " reduce(" in line and "maximum" not in line]
    assert len(added) >= len([n for n in lengths if n > 1])


@pytest.mark.parametrize("ends", [(-41, 41), (-41, -39), (39, 41), (-120, 100), (-60, -45)])
def test_a_long_vector_of_any_mixture_of_scales(ends):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2 * ONE_STAGE)) * 2.0 ** rng.integers(*ends, size=(3, 2 * ONE_STAGE))
    x[1] = np.sort(np.abs(x[1]))
    x = x.astype(np.float32)
    truth = np.linalg.norm(x.astype(np.float64), axis=1)
    norm = materialised_norm(jnp.asarray(x))
    np.testing.assert_allclose(norm.estimate, truth, rtol=1e-4)
    assert np.all(np.asarray(norm.upper, np.float64) >= truth)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_long_vector_with_a_number_that_is_none(value):
    x = np.ones((3, 2 * ONE_STAGE), np.float32)
    x[1, 7], x[2] = value, 1e30
    norm = materialised_norm(jnp.asarray(x))
    np.testing.assert_array_equal(np.isfinite(norm.upper), [True, False, True])


@pytest.mark.parametrize("size", [7, ONE_STAGE + 3])
@pytest.mark.parametrize("name", HOSTILE)
def test_in_one_pass_the_bound_holds_wherever_it_is_called_sound(name, size):
    gradient = np.stack([HOSTILE[name](np.random.default_rng(i), size) for i in range(2)])
    gradient = gradient.astype(np.float32)
    norm, sound = quick_norm(jnp.asarray(gradient))
    for row, upper, fits in zip(gradient, np.asarray(norm.upper), sound.tolist(), strict=True):
        truth = exact_norm(row)
        assert not fits or truth <= float(upper) <= max(truth * SHARP, 2.0**-50)
        assert fits or not 2.0**-39 < truth < 2.0**49


def test_in_one_pass_what_is_not_finite_is_not_sound():
    gradient = jnp.asarray([[np.nan, 1], [np.inf, 1], [1, 1], [0, 0]], jnp.float32)
    norm, sound = quick_norm(gradient)
    assert sound.tolist() == [False, False, True, True]
    assert float(norm.upper[3]) < 2.0**-60
