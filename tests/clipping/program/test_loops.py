"""Loops whose outputs begin uninitialised, or overwrite inputs, give the bits of a scan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmark_models import models
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.program import loops


@pytest.fixture
def replaced(monkeypatch):
    """Runs the loops as on one device. The list grows with every loop that is replaced."""
    found = []
    original = loops.run_loop

    def recorded(eqn, inputs, overwritten):
        found.append(overwritten)
        return original(eqn, inputs, overwritten)

    monkeypatch.setattr(loops, "pays", lambda: True)
    monkeypatch.setattr(loops, "run_loop", recorded)
    return found


def lean(function, *args):
    program = jax.make_jaxpr(function)(*args)
    run = loops.with_lean_loops(program, functools.partial(jax.core.eval_jaxpr, program.jaxpr, []))
    return run(*args)


def stacks(x, ws, reverse=False, unroll=1):
    def layer(x, w):
        return jnp.sin(x @ w), (x, x @ w)

    last, stacked = jax.lax.scan(layer, x, ws, reverse=reverse, unroll=unroll)
    return [last, *stacked]


def nested(x, ws):
    def layer(x, w):
        x, inner = jax.lax.scan(lambda x, row: (x + row, x * row), x, w)
        return x, inner

    return list(jax.lax.scan(layer, x, ws))


def without_inputs(x, ws):
    return list(jax.lax.scan(lambda x, _: (x + ws[0, 0], x), x, None, length=3))


def called(x, ws):
    return jax.jit(stacks)(x, ws)


def two_passes(x, ws):
    """As a backward pass reads what the forward pass stacked, in reverse."""
    _, (pres, outs) = jax.lax.scan(lambda x, w: (jnp.sin(x @ w), (x @ w, x)), x, ws)

    def back(g, slices):
        w, pre, out = slices
        at_pre = g * jnp.cos(pre)
        return w @ at_pre, (at_pre, g, jnp.sum(out))

    return jax.tree.leaves(jax.lax.scan(back, x, (ws, pres, outs), reverse=True))


def read_twice(x, ws):
    _, pres = jax.lax.scan(lambda x, w: (jnp.sin(x @ w), x @ w), x, ws)
    last, g = jax.lax.scan(lambda g, pre: (g * jnp.cos(pre),) * 2, x, pres)
    return [last, g, jnp.sum(pres)]


def from_outside(x, ws):
    return list(jax.lax.scan(lambda g, w: (g + w[0], w * 2), x, ws))


X = jnp.asarray(np.random.default_rng(0).normal(size=4), jnp.float32)
WS = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 4)), jnp.float32)


@pytest.mark.parametrize(
    "function, count",
    [
        (stacks, 1),
        (lambda x, ws: stacks(x, ws, reverse=True), 1),
        (nested, 2),
        (without_inputs, 1),
        (called, 1),
        (two_passes, 2),
        (read_twice, 2),
        (from_outside, 1),
        # Left as they are: an unrolled loop, and one that stacks nothing.
        (lambda x, ws: stacks(x, ws, unroll=2), 0),
        (lambda x, ws: [jax.lax.scan(lambda x, w: (x @ w, None), x, ws)[0]], 0),
    ],
    ids=[
        *("forward", "reverse", "nested", "without inputs", "called", "two passes", "read twice"),
        *("from outside", "unrolled", "no outputs"),
    ],
)
def test_a_loop_gives_what_the_scan_gives(function, count, replaced):
    expected = jax.tree.leaves(function(X, WS))
    found = lean(lambda x, ws: jax.tree.leaves(function(x, ws)), X, WS)
    assert len(replaced) == count
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_result_overwrites_the_slice_that_it_is_computed_from(replaced):
    """The cotangent of `pre` takes its place. `g` does not: it may exist before `pre` is read."""
    lean(two_passes, X, WS)
    assert replaced == [{}, {0: 1}]


@pytest.mark.parametrize("function", [read_twice, from_outside])
def test_what_is_read_elsewhere_is_not_overwritten(function, replaced):
    lean(function, X, WS)
    assert not any(replaced)


def test_overwriting_copies_nothing(replaced, monkeypatch):
    size = 64
    x, ws = jnp.ones((32, size)), jnp.ones((4, size, size))

    def compiled():
        jax.clear_caches()
        return jax.jit(lambda x, ws: lean(backward, x, ws)).lower(x, ws).compile()

    def backward(x, ws):
        _, pres = jax.lax.scan(lambda x, w: (jnp.sin(x @ w),) * 2, x, ws)

        def back(g, slices):
            w, pre = slices
            at_pre = g * jnp.cos(pre)
            return at_pre @ w.T, at_pre

        return jax.tree.leaves(jax.lax.scan(back, x, (ws, pres), reverse=True))

    stack = 4 * 32 * size * 4
    lean_bytes = compiled().memory_analysis().temp_size_in_bytes
    monkeypatch.setattr(loops, "overwritten", lambda eqn, free: {})
    assert compiled().memory_analysis().temp_size_in_bytes - lean_bytes >= 0.9 * stack


def test_a_loop_that_stacks_keys_is_left_as_it_is(replaced):
    def function(key):
        return jax.lax.scan(lambda key, _: (jax.random.split(key)[0], key), key, None, length=2)

    with jax.numpy_rank_promotion("allow"):
        found = lean(lambda key: list(function(key)), jax.random.key(0))
    assert not replaced
    np.testing.assert_array_equal(
        jax.random.key_data(found[1]), jax.random.key_data(function(jax.random.key(0))[1])
    )


def test_a_loop_without_steps_is_left_as_it_is(replaced):
    x, ws = jnp.ones((2, 3)), jnp.ones((0, 3, 3))
    last, *stacked = lean(stacks, x, ws)
    assert not replaced
    np.testing.assert_array_equal(last, x)
    assert [y.shape for y in stacked] == [(0, 2, 3)] * 2


def test_no_zeros_are_written(replaced):
    program = jax.make_jaxpr(lambda x, ws: lean(stacks, x, ws))(X, WS)
    names = [eqn.primitive.name for eqn in program.jaxpr.eqns]
    assert names.count("empty") == 2


@pytest.mark.parametrize("remat", [False, True])
def test_the_clipped_gradient_of_layers_in_a_scan_is_the_same(remat, replaced, monkeypatch):
    case = models.gpt(
        jnp.dtype("float32"), batch_size=4, size=models.GPT_TINY, layers="scan", remat=remat
    )

    def sums():
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            function = bevel.clipped_grad(case.loss, l2_clip_norm=1.0)
            return jax.tree.leaves(function(*case.arguments))

    found = sums()
    assert len(replaced) >= 2  # the forward and the backward pass
    monkeypatch.setattr(loops, "pays", lambda: False)
    for a, b in zip(found, sums(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_backward_pass_over_layers_stacks_in_place(monkeypatch):
    def layer(x, w):
        return x + jax.nn.silu(x @ w["up"]) @ w["down"], None

    def loss(params, x):
        return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)

    def temporaries():
        """On one shard, which is one device."""
        clipped = bevel.clipped_grad(loss, l2_clip_norm=1.0, norms="gram", reduce_axes="data")
        mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
        on_shard = jax.shard_map(clipped, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
        return jax.jit(on_shard).lower(params, batch).compile().memory_analysis().temp_size_in_bytes

    params = {"up": jnp.ones((6, 64, 256)), "down": jnp.ones((6, 256, 64))}
    batch = jnp.ones((32, 32, 64))
    in_place = temporaries()
    monkeypatch.setattr(loops, "pays", lambda: False)
    cotangents = 4 * 6 * 4 * 32 * 256
    assert in_place < temporaries() - 0.5 * cotangents
