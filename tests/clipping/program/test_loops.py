"""Loops whose outputs begin uninitialised give the bits of a scan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmark_models import models

import bevel
from bevel.clipping.program import loops


@pytest.fixture
def replaced(monkeypatch):
    """Runs the loops as on one GPU. The list grows with every loop that is replaced."""
    found = []
    original = loops.run_loop

    def recorded(eqn, inputs):
        found.append(eqn)
        return original(eqn, inputs)

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
        # Left as they are: an unrolled loop, and one that stacks nothing.
        (lambda x, ws: stacks(x, ws, unroll=2), 0),
        (lambda x, ws: [jax.lax.scan(lambda x, w: (x @ w, None), x, ws)[0]], 0),
    ],
    ids=["forward", "reverse", "nested", "without inputs", "called", "unrolled", "no outputs"],
)
def test_a_loop_gives_what_the_scan_gives(function, count, replaced):
    expected = jax.tree.leaves(function(X, WS))
    found = lean(lambda x, ws: jax.tree.leaves(function(x, ws)), X, WS)
    assert len(replaced) == count
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_loop_that_stacks_keys_is_left_as_it_is(replaced):
    def function(key):
        return jax.lax.scan(lambda key, _: (jax.random.split(key)[0], key), key, None, length=2)

    with jax.numpy_rank_promotion("allow"):
        found = lean(lambda key: list(function(key)), jax.random.key(0))
    assert not replaced
    np.testing.assert_array_equal(
        jax.random.key_data(found[1]), jax.random.key_data(function(jax.random.key(0))[1])
    )


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
