"""Odd programs: the clipped sum equals a plain loop of `jax.grad`, or bevel says why it cannot.

The reference runs one example at a time in the dtype of the program and clips in float64. Programs
here need not work in float64: callbacks, refs and kernels have dtypes of their own.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_close
from jax import lax
from programs import (
    BATCH,
    EXTERNAL,
    PROGRAMS,
    TOLERANCE,
    B,
    D,
    K,
    W,
    alternately,
    check,
    dense,
    draw,
    reference,
    shrunk,
    sine_on_host,
    squared,
    straight_through,
)

import bevel
from bevel.errors import FixLossError, MoveCollectiveError


@pytest.mark.parametrize("name, how", alternately(PROGRAMS))
def test_equals_a_loop_of_grads(name, how):
    check(PROGRAMS[name], wrap=jax.jit if how == "jit" else lambda f: f)


# What cannot be done per example is refused, in words.

IMPOSSIBLE = {
    "while on a parameter": lambda w, b: squared(b["x"] @ shrunk(w), b),
    "callback on a parameter": lambda w, b: squared(b["x"] @ sine_on_host(w, "sequential"), b),
    "ref from outside, written": lambda w, b: (write_outside(b["x"]), dense(w, b))[1],
    "ordered effect": lambda w, b: (
        jax.debug.callback(lambda _: None, jnp.sum(b["x"]), ordered=True),
        dense(w, b),
    )[1],
    "no scalar": lambda w, b: b["x"] @ w,
    "aux without has_aux": lambda w, b: (dense(w, b), 1),
    "nothing": lambda w, b: None,
    "whole number": lambda w, b: 1,
}


def write_outside(x):
    EXTERNAL[...] = jnp.sum(x)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_refused(name):
    with pytest.raises(FixLossError):
        bevel.clipped_grad(IMPOSSIBLE[name], l2_clip_norm=1.0)(W, BATCH)


# Calls inside other transformations.


def scaled(s):
    return lambda w, b: squared(jnp.tanh(s * (b["x"] @ w)), b)


SCALES = jnp.array([0.5, 2.0])
OUTER = {
    "jit": lambda f: [jax.jit(f)(s) for s in SCALES],
    "vmap": lambda f: list(jax.vmap(f)(SCALES)),
    "scan": lambda f: list(lax.scan(lambda _, s: (_, f(s)), 0, SCALES)[1]),
    "vmap in jit": lambda f: list(jax.jit(jax.vmap(f))(SCALES)),
}


@pytest.mark.parametrize("name", OUTER)
@pytest.mark.parametrize("options", [{}, {"microbatch_size": 2}], ids=["whole", "microbatches"])
def test_closes_over_an_outer_tracer(name, options):
    got = OUTER[name](
        lambda s: bevel.clipped_grad(scaled(s), l2_clip_norm=1.0, **options)(W, BATCH)
    )
    expected = [reference(scaled(float(s)), W, BATCH, clip_norm=1.0)[1] for s in SCALES]
    assert_close(got, expected, TOLERANCE)


def test_vmap_over_parameters_batches_and_masks():
    masks = jnp.stack([jnp.arange(B) < 2, jnp.arange(B) >= 3])
    params, batches = jnp.stack([W, 2 * W]), jax.tree.map(lambda x: jnp.stack([x, -x]), BATCH)
    fn = bevel.clipped_grad(dense, l2_clip_norm=1.0, microbatch_size=2)
    got = jax.vmap(lambda p, b, m: fn(p, b, is_padding_example=m))(params, batches, masks)
    for i in range(2):
        kept = jax.tree.map(lambda x, i=i: x[i][~masks[i]], batches)
        assert_close(got[i], reference(dense, params[i], kept, clip_norm=1.0)[1], TOLERANCE)


def differentiable_sum(loss, params, clip_norm):
    """The clipped sum, written so that JAX can differentiate it."""
    total = jax.tree.map(jnp.zeros_like, params)
    for i in range(B):
        g = jax.grad(loss)(params, jax.tree.map(lambda x, i=i: x[i : i + 1], BATCH))
        norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(g)))
        factor = jnp.minimum(1.0, clip_norm / norm)
        total = jax.tree.map(lambda t, x, f=factor: t + f * x, total, g)
    return total


def rounded(s):
    return lambda w, b: squared(jnp.tanh(straight_through(3 * s * b["x"]) @ w), b)


def partly_dead(s):
    def loss(p, b):
        dead = jnp.sum(jax.nn.relu(-100 - s * p["dead"] ** 2))
        return squared(jnp.tanh(s * (b["x"] @ p["w"])) + dead, b)

    return loss


HYPER = {
    "scale": (scaled, W),
    "behind a rule of the user": (rounded, W),
    "with a parameter whose gradient is zero": (partly_dead, {"w": W, "dead": W}),
}


@pytest.mark.parametrize("name", HYPER)
def test_outer_gradient(name):
    make_loss, params = HYPER[name]

    def outer(s, clipped_sum):
        total = clipped_sum(make_loss(s), params)
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(total))

    def by_bevel(loss, params):
        return bevel.clipped_grad(loss, l2_clip_norm=1.0)(params, BATCH)

    gradient = jax.jit(jax.grad(outer), static_argnums=1)
    expected = gradient(1.3, lambda loss, params: differentiable_sum(loss, params, 1.0))
    np.testing.assert_allclose(gradient(1.3, by_bevel), expected, rtol=1e-3)


def test_argnums_keep_their_order():
    def loss(a, b, batch):
        return squared(2 * batch["x"] @ a, batch) + jnp.sum(jnp.sin(batch["x"] @ b))

    other = draw(K, D).T
    fn = bevel.clipped_grad(loss, argnums=(1, 0), batch_argnums=2, l2_clip_norm=1e6)
    expected = [jax.grad(loss, i)(W, other, jax.tree.map(lambda x: x[:1], BATCH)) for i in (1, 0)]
    assert_close(fn(W, other, jax.tree.map(lambda x: x[:1], BATCH)), tuple(expected), TOLERANCE)


def test_a_collective_over_an_outer_vmap_is_refused():
    def centred(w, b):
        return squared((b["x"] - lax.pmean(b["x"], "clients")) @ w, b)

    fn = bevel.clipped_grad(centred, l2_clip_norm=1.0)
    clients = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), BATCH)
    with pytest.raises(MoveCollectiveError):
        jax.vmap(lambda b: fn(W, b), axis_name="clients")(clients)
