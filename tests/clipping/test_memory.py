"""Modes of memory: the same result from all of them, at the cost and in the memory promised."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from clipping.program.test_remat import offloading
from clipping.uses.test_taps import QUICK, draw, squared
from compare import assert_close
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.explain import plan_of, products
from bevel.clipping.options import MEMORY_MODES
from bevel.errors import FixArgumentsError

L, D, K, T, SIZE, CLIP_NORM = 3, 8, 16, 4, 16, 0.136
PARAMS = {"bias": draw(5), "up": draw(L, D, K) / 4, "down": draw(L, K, D) / 4, "head": draw(D, 5)}
BATCH = draw(SIZE, T, D) * 2.0 ** jnp.linspace(-3.0, 2.0, SIZE)[:, None, None]
NOT_FINITE = BATCH.at[2, 1, 3].set(jnp.nan).at[5].set(jnp.inf)


UP_DOWN = ("up", "down")


def layer(h, w):
    h = h + jnp.tanh(h @ w["up"]) @ w["down"]
    return h / (1 + jnp.sum(h * h, axis=-1, keepdims=True))


def in_scan(p, x, wrap=jax.checkpoint):
    layers = {name: p[name] for name in UP_DOWN}
    h = lax.scan(lambda h, w: (wrap(layer)(h, w), None), x, layers)[0]
    return squared(h @ p["head"] + p["bias"][None, None])


def in_loop(p, x, wrap=jax.checkpoint):
    """Several uses of each stacked parameter."""
    h = x
    for i in range(p["up"].shape[0]):
        h = wrap(layer)(h, {name: p[name][i] for name in UP_DOWN})
    return squared(h @ p["head"] + p["bias"][None, None])


def cast_and_counted(p, x, wrap=jax.checkpoint):
    """Parameters are cast outside of the remat, which also takes a counter from the carry."""

    def step(state, w):
        h, count = state
        cast = jax.tree.map(lambda a: a.astype(h.dtype) * 1.0, w)
        h = wrap(lambda h, w, c: layer(h, w) * (1 + 0.1 * c))(h, cast, count)
        return (h, count + 1.0), None

    layers = {name: p[name] for name in UP_DOWN}
    h = lax.scan(step, (x, jnp.zeros((), x.dtype)), layers)[0][0]
    return squared(h @ p["head"] + p["bias"][None, None])


def grouped(p, x, wrap=jax.checkpoint):
    """A remat around a scan, inside a scan."""
    layers = {name: jnp.stack([p[name]] * 2) for name in UP_DOWN}

    def group(h, w):
        inner = wrap(lambda h, w: lax.scan(lambda h, v: (layer(h, v), None), h, w)[0])
        return inner(h, w), None

    h = lax.scan(group, x, layers)[0]
    return squared(h @ p["head"] + p["bias"][None, None])


def complex_output(p, x, wrap=jax.checkpoint):
    """The output of a remat is complex, and another one is not used."""
    h = wrap(lambda h, w: (jnp.fft.fft(layer(h, w)), jnp.sum(h)))(x, {n: p[n][0] for n in UP_DOWN})
    return squared(jnp.abs(h[0]) @ p["head"] / 8 + p["bias"][None, None])


def added(p, x, wrap=jax.checkpoint):
    """Two parameters meet the example in one equation."""
    sums = wrap(lambda h, a, b: jnp.tanh(h @ (a + jnp.swapaxes(b, 0, 1))))
    return squared(sums(x, p["up"][0], p["down"][0])[..., :D] @ p["head"] + p["bias"][None, None])


def shared_remats(p, x, wrap=jax.checkpoint):
    """Remats and calls of parameters alone lead to remats with examples, also through a carry."""

    def step(state, w):
        h, scale = state
        both = jax.jit(lambda h, s: (h * 1.0, s + 1.0))
        h, scale = both(h, wrap(jnp.sin)(scale))
        return (wrap(lambda h, w, s: layer(h, w) * s)(h, w, scale), scale), None

    layers = {name: wrap(lambda w: jnp.tanh(w) * 1.0)(p[name]) for name in UP_DOWN}
    h = lax.scan(step, (x, jnp.ones((), x.dtype)), layers)[0][0]
    return squared(h @ p["head"] + p["bias"][None, None])


LOSSES = {
    f.__name__: f
    for f in (in_scan, in_loop, cast_and_counted, grouped, complex_output, added, shared_remats)
}


def clipped(fun, memory, **options):
    """With taps: parameters this small would be materialised otherwise."""
    options = {"l2_clip_norm": CLIP_NORM, "return_grad_norms": True, "norms": "gram"} | options
    return bevel.clipped_grad(fun, memory=memory, **options)


def assert_is(result, expected):
    grad, aux = result
    assert_close(jax.tree.map(np.asarray, grad), expected.grad, 1e-4)
    np.testing.assert_allclose(aux.grad_norms, expected.norms, rtol=3e-5)


@functools.cache
def expected_of(name):
    expected = oracle.clipped_sum(LOSSES[name], PARAMS, BATCH, clip_norm=CLIP_NORM)
    assert np.max(expected.norms) > CLIP_NORM
    assert name != "in_scan" or np.min(expected.norms) < CLIP_NORM
    return expected


@pytest.mark.parametrize("memory", ["auto", *MEMORY_MODES])
@pytest.mark.parametrize("name", LOSSES)
def test_every_mode_equals_the_oracle(name, memory):
    fn = clipped(LOSSES[name], memory)
    assert_is(jax.jit(fn, compiler_options=QUICK)(PARAMS, BATCH), expected_of(name))


@pytest.mark.parametrize("memory", MEMORY_MODES)
def test_every_mode_excludes_padding_and_what_is_not_finite(memory):
    padding = np.arange(SIZE) % 4 == 3
    fn = jax.jit(clipped(in_scan, memory), compiler_options=QUICK)
    grad, _ = fn(PARAMS, NOT_FINITE, is_padding_example=padding)
    expected = oracle.clipped_sum(in_scan, PARAMS, NOT_FINITE, padding=padding, clip_norm=CLIP_NORM)
    assert_close(grad, expected.grad, 1e-4)


@pytest.mark.parametrize("memory", MEMORY_MODES)
def test_every_mode_draws_the_same_random_numbers(memory):
    def noisy(p, x, key):
        def step(state, w):
            h, key = state
            key, own = jax.random.split(key)
            mask = jax.random.bernoulli(own, 0.5, h.shape).astype(h.dtype)
            return (jax.checkpoint(layer)(h * mask, w), key), None

        return squared(lax.scan(step, (x, key), p)[0][0])

    layers, key = {name: PARAMS[name] for name in UP_DOWN}, jax.random.key(1)
    runs = [
        jax.jit(clipped(noisy, m, prng_argnum=2), compiler_options=QUICK)(layers, BATCH, key)
        for m in (memory, "bookkeeping")
    ]
    assert_close(*(jax.tree.map(np.asarray, run[0]) for run in runs), 3e-5)


SPECS = {"bias": P(), "up": P(None, "data", "model"), "down": P(None, "model", "data"), "head": P()}


@pytest.mark.parametrize("memory", MEMORY_MODES)
def test_every_mode_works_on_an_auto_mesh(memory):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    params = {n: jax.device_put(p, NamedSharding(mesh, SPECS[n])) for n, p in PARAMS.items()}
    batch = jax.device_put(BATCH, NamedSharding(mesh, P("data")))
    result = jax.jit(clipped(in_scan, memory), compiler_options=QUICK)(params, batch)
    assert_is(result, expected_of("in_scan"))
    for name, grad in result[0].items():
        assert grad.sharding.is_equivalent_to(params[name].sharding, grad.ndim)


@pytest.mark.parametrize("memory", MEMORY_MODES)
@pytest.mark.parametrize("loss", [in_scan, in_loop])
def test_every_mode_works_on_an_explicit_mesh(loss, memory):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    specs = SPECS | {"up": P(None, None, "model"), "down": P(None, "model", None)}

    def explicit(h, w):
        up = jnp.tanh(jnp.einsum("btd,dk->btk", h, w["up"], out_sharding=P("data", None, "model")))
        down = jnp.einsum("btk,kd->btd", up, w["down"], out_sharding=P("data", None, None))
        h = h + down
        return h / (1 + jnp.sum(h * h, axis=-1, keepdims=True))

    wrap = lambda f: jax.checkpoint(explicit)  # noqa: E731
    params = {n: jax.device_put(p, NamedSharding(mesh, specs[n])) for n, p in PARAMS.items()}
    batch = jax.device_put(BATCH, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        fn = clipped(functools.partial(loss, wrap=wrap), memory)
        result = jax.jit(fn, compiler_options=QUICK)(params, batch)
    assert_is(result, expected_of(loss.__name__))


@pytest.mark.parametrize("memory", MEMORY_MODES)
def test_every_mode_works_inside_shard_map(memory):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    fn = clipped(in_scan, memory, reduce_axes="data")
    specs = {"in_specs": (P(), P("data")), "out_specs": (P(), P("data"))}
    step = jax.shard_map(lambda p, x: fn(p, x), mesh=mesh, check_vma=True, **specs)
    assert_is(jax.jit(step, compiler_options=QUICK)(PARAMS, BATCH), expected_of("in_scan"))


def plan(fun, params, batch, **options):
    fn = bevel.clipped_grad(fun, l2_clip_norm=1.0, **options)
    return plan_of(fn.task, (params, batch), {})[0]


WIDE = {"bias": draw(5), "up": draw(4, 64, 256) / 16, "down": draw(4, 256, 64) / 16}
WIDE["head"] = draw(64, 5)
LONG = draw(64, 32, 64)


@pytest.mark.parametrize("loss", [in_scan, in_loop])
def test_remat_costs_no_second_pass_and_no_memory(loss):
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0)
    plain, private = (jax.jit(f).trace(WIDE, LONG) for f in (jax.grad(loss), fn))
    assert products(private.jaxpr) <= 1.2 * products(plain.jaxpr)
    temporary = [f.lower().compile().memory_analysis().temp_size_in_bytes for f in (plain, private)]
    assert temporary[1] <= 1.15 * temporary[0]


def test_auto_takes_the_largest_microbatches_that_fit():
    chosen = plan(in_scan, WIDE, LONG).memory
    assert chosen.mode == "microbatches" and 1 < chosen.microbatch_size < 64
    doubled = plan(in_scan, WIDE, LONG, microbatch_size=2 * chosen.microbatch_size).memory
    assert doubled.mode != "microbatches"
    assert doubled.microbatch_size == 2 * chosen.microbatch_size


def test_auto_takes_a_tiny_batch_at_once():
    chosen = plan(in_scan, PARAMS, BATCH).memory
    assert (chosen.mode, chosen.microbatch_size) == ("microbatches", None)


def test_auto_changes_nothing_without_remat():
    chosen = plan(functools.partial(in_scan, wrap=lambda f: f), WIDE, LONG).memory
    assert (chosen.mode, chosen.microbatch_size) == ("bookkeeping", None)


def test_sharded_parameters_are_not_gathered_once_per_microbatch():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    batch = jax.device_put(LONG, NamedSharding(mesh, P("data")))
    specs = {"replicated": {}, "fsdp": {"up": P(None, "data"), "down": P(None, "data")}}
    modes = {}
    for name, own in specs.items():
        params = {
            n: jax.device_put(p, NamedSharding(mesh, own.get(n, P()))) for n, p in WIDE.items()
        }
        modes[name] = plan(in_scan, params, batch).memory.mode
    assert modes == {"replicated": "microbatches", "fsdp": "boundaries"}


@pytest.mark.parametrize("wrap", [jax.checkpoint, lambda f: f], ids=["remat", "no remat"])
def test_limits_are_kept(wrap):
    loss = functools.partial(in_scan, wrap=wrap)

    def temporary(memory):
        fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, memory=memory)
        return jax.jit(fn).lower(WIDE, LONG).compile().memory_analysis().temp_size_in_bytes

    unbounded = temporary("bookkeeping")
    assert temporary(unbounded // 2) <= 1.3 * unbounded / 2
    grad = jax.jit(jax.grad(loss)).lower(WIDE, LONG).compile().memory_analysis()
    assert temporary(1.5) <= 1.3 * 1.5 * grad.temp_size_in_bytes


def test_a_limit_that_cannot_be_kept_is_refused_with_one_that_can():
    with pytest.raises(
        FixArgumentsError, match=r"allows less than this call needs, about [0-9,]+"
    ) as error:
        plan(in_scan, WIDE, LONG, memory=1000)
    (least,) = re.findall(r"Pass memory=([0-9]+)", str(error.value))
    assert plan(in_scan, WIDE, LONG, memory=int(least)).memory.microbatch_size == 1


@pytest.mark.parametrize("memory", ["auto", "bookkeeping"])
def test_a_policy_that_offloads_is_kept(memory):
    named = lambda f: lambda h, w: checkpoint_name(f(h, w), "kept")  # noqa: E731
    wrap = lambda f: jax.checkpoint(named(f), policy=offloading("kept"))  # noqa: E731
    found = plan(functools.partial(in_scan, wrap=wrap), WIDE, LONG, memory=memory)
    assert (found.memory.mode, found.memory.microbatch_size) == ("bookkeeping", None)


def test_a_policy_that_could_offload_is_combined_with_what_taps_need():
    wrap = lambda f: jax.checkpoint(f, policy=offloading("absent"))  # noqa: E731
    fn = jax.jit(clipped(functools.partial(in_scan, wrap=wrap), "auto"), compiler_options=QUICK)
    assert_is(fn(PARAMS, BATCH), expected_of("in_scan"))


@pytest.mark.parametrize("memory", ["high", 0, -1.5, True, float("nan"), float("inf"), None])
def test_what_is_no_limit_is_refused(memory):
    with pytest.raises(FixArgumentsError, match=r"memory=.*: write 'auto', one of"):
        bevel.clipped_grad(in_scan, l2_clip_norm=1.0, memory=memory)


def test_explain_says_what_was_chosen_and_why():
    text = str(bevel.explain(bevel.clipped_grad(in_scan, l2_clip_norm=1.0), WIDE, LONG))
    assert "memory: microbatches, " in text and "examples at a time (the least work" in text
    assert "estimated temporaries per device: jax.grad " in text
