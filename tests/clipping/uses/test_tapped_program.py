"""Parameters in loops, branches, nested jits and remats, in any order of nesting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipping.uses.test_taps import (
    OPAQUE,
    OVERLAPPING,
    TAPPED,
    W,
    X,
    assert_equals_grad,
    assert_understood,
    draw,
    squared,
    traced,
)
from compare import assert_close
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.uses.find import find_uses
from bevel.clipping.uses.taps import HoldValues, differentiate

SQUARE, LAYERS = draw(6, 6) / 2, draw(3, 6, 6) / 2
BLOCKS = draw(2, 3, 6, 6) / 2
TOKENS = jnp.array([[[0, 1, 0]], [[4, 2, 4]]])
remat = jax.checkpoint


def step(h, w):
    return jnp.tanh(h @ w), None


product = jax.jit(lambda h, w: jnp.tanh(h @ w))


def scan(body, start, xs=None, **options):
    return lax.scan(body, start, xs, **options)[0]


def times(count, body, start):
    return scan(lambda h, _: (body(h), None), start, length=count)


def positive(x):
    return x[0, 0] > 0


PROGRAMS = {
    TAPPED: {
        "layers": (LAYERS, X, lambda w, x: squared(scan(step, x, w))),
        "layers, reversed and unrolled": (
            LAYERS,
            X,
            lambda w, x: squared(scan(step, x, w, reverse=True, unroll=2)),
        ),
        "layers in another dimension, flipped": (
            draw(6, 3, 6),
            X,
            lambda w, x: squared(scan(step, x, jnp.swapaxes(w, 0, 1)[::-1], reverse=True)),
        ),
        "shared": (SQUARE, X, lambda w, x: squared(times(3, lambda h: step(h, w)[0], x))),
        "shared, and outside": (
            SQUARE,
            X,
            lambda w, x: squared(times(2, lambda h: step(h, w)[0], x) @ w.T),
        ),
        "a position at a time": (
            W,
            draw(2, 1, 4, 6),
            lambda w, x: squared(lax.scan(lambda c, r: (c, r @ w), 0, jnp.swapaxes(x, 0, 1))[1]),
        ),
        "layers of layers, cut and turned": (
            draw(2, 3, 14, 6) / 2,
            X,
            lambda w, x: squared(
                scan(lambda h, v: (scan(step, h, v[1:, :6][::-1]), None), x, w[:, :, ::2])
            ),
        ),
        "layers, each shared": (
            LAYERS,
            X,
            lambda w, x: squared(
                scan(lambda h, v: (times(2, lambda k: step(k, v)[0], h), None), x, w)
            ),
        ),
        "three loops": (
            BLOCKS,
            X,
            lambda w, x: squared(
                scan(lambda h, v: (times(2, lambda k: scan(step, k, v), h), None), x, w)
            ),
        ),
        "picked by the number of the step": (
            LAYERS,
            X,
            lambda w, x: squared(lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w[i]), x)),
        ),
        "looked up at each step": (
            draw(5, 6),
            TOKENS,
            lambda w, k: squared(
                scan(lambda h, t: (jnp.tanh(h + w[t]), None), jnp.zeros((1, 6)), k.T)
            ),
        ),
        "looked up in the table of each step": (
            draw(2, 5, 3),
            TOKENS,
            lambda w, k: squared(lax.scan(lambda c, v: (c, v[k]), 0, w)[1]),
        ),
        "a jit called twice in a loop": (
            SQUARE,
            X,
            lambda w, x: squared(times(2, lambda h: product(product(h, w), w), x)),
        ),
        "a jit called twice in a loop, two parameters": (
            (SQUARE, SQUARE / 2),
            X,
            lambda p, x: squared(times(2, lambda h: product(product(h, p[0]), p[1]), x)),
        ),
        "handed back by a jit": (
            SQUARE,
            X,
            lambda w, x: squared(times(2, lambda h: h @ jax.jit(lambda v: (h, v.T))(w)[1], x)),
        ),
        "one body, two loops": (
            (LAYERS, LAYERS / 2),
            X,
            lambda p, x: squared(scan(step, scan(step, x, p[0]), p[1])),
        ),
        "two loops over parts": (
            LAYERS,
            X,
            lambda w, x: squared(scan(step, scan(step, x, w[1:]), w[:1])),
        ),
        "parts of layers": (
            draw(2, 6, 12) / 2,
            X,
            lambda w, x: squared(scan(lambda h, v: (step(h, v[:, :6])[0] @ v[:, 6:], None), x, w)),
        ),
        "carried unchanged": (
            SQUARE,
            X,
            lambda w, x: squared(
                scan(lambda c, _: ((c[0], step(c[1], c[0])[0]), None), (w, x), length=2)[1]
            ),
        ),
        "numbers in the carry": (
            LAYERS,
            X,
            lambda w, x: squared(
                scan(
                    lambda c, v: ((c[0] + 1, 2.0 * c[1], c[1] * (c[2] @ v)), None), (0, 1.0, x), w
                )[2]
            ),
        ),
        "remat in a loop": (LAYERS, X, lambda w, x: squared(scan(remat(step), x, w))),
        "a loop in remat": (
            LAYERS,
            X,
            lambda w, x: squared(remat(lambda w, x: scan(step, x, w))(w, x)),
        ),
        "remat in a loop in remat, with policies": (
            LAYERS,
            X,
            lambda w, x: squared(
                remat(
                    lambda w, x: scan(remat(step, policy=policies.dots_saveable), x, w),
                    policy=policies.nothing_saveable,
                )(w, x)
            ),
        ),
        "in remat and outside": (
            SQUARE,
            X,
            lambda w, x: squared(remat(lambda w, x: step(x, w)[0] @ w)(w, x) @ w),
        ),
        "each branch its own": (
            (W, W / 2),
            X,
            lambda p, x: squared(lax.cond(positive(x), lambda: x @ p[0], lambda: x**2 @ p[1])),
        ),
        "in one branch": (
            W,
            X,
            lambda w, x: squared(lax.cond(positive(x), lambda: x @ w, lambda: x[:, :3])),
        ),
        "in both branches": (
            W,
            X,
            lambda w, x: squared(lax.cond(positive(x), lambda: x @ w, lambda: 2 * (x**2 @ w))),
        ),
        "branches that no example takes alone": (
            W,
            X,
            lambda w, x: squared(
                lax.cond(
                    jnp.sum(x) < 99, lambda: x @ w, lambda: jnp.sqrt(-jnp.ones((1, 3))) * (x @ w)
                )
            ),
        ),
        "branches in branches, and outside": (
            SQUARE,
            X,
            lambda w, x: squared(
                lax.switch(
                    (x[0, 0] + 2).astype(jnp.int32),
                    [
                        lambda: x,
                        lambda: lax.cond(positive(-x), lambda: x @ w, lambda: x @ w.T),
                        lambda: jnp.tanh(x @ w) @ w,
                    ],
                )
                @ w
            ),
        ),
        "looked up in branches": (
            draw(5, 6),
            TOKENS,
            lambda w, k: squared(lax.cond(k[0, 0] > 1, lambda: w[k], lambda: jnp.tanh(w[k + 1]))),
        ),
        "branches in a loop": (
            SQUARE,
            X,
            lambda w, x: squared(
                scan(
                    lambda h, i: (
                        lax.cond(i % 2 == 0, lambda: jnp.tanh(h @ w), lambda: 2 * h @ w.T),
                        None,
                    ),
                    x,
                    jnp.arange(3),
                )
            ),
        ),
        "a loop in a branch": (
            LAYERS,
            X,
            lambda w, x: squared(lax.cond(positive(x), lambda: scan(step, x, w), lambda: x)),
        ),
        "convolved in loops": (
            draw(2, 4, 4, 3) / 2,
            draw(2, 2, 4, 5),
            lambda w, x: squared(
                scan(
                    lambda h, v: (
                        times(2, lambda k: lax.conv_general_dilated(k, v, (1,), "SAME"), h),
                        None,
                    ),
                    x,
                    w,
                )
            ),
        ),
    },
    OVERLAPPING: {
        "one body, two loops, one parameter": (
            LAYERS,
            X,
            lambda w, x: squared(scan(step, scan(step, x, w), w)),
        ),
        "layers and all of them": (
            LAYERS,
            X,
            lambda w, x: squared(scan(lambda h, v: (step(h, v)[0] + h @ w[0], None), x, w)),
        ),
        "layers used twice": (
            LAYERS,
            X,
            lambda w, x: squared(scan(lambda h, v: (step(h, v)[0] @ v, None), x, w)),
        ),
        "layers, and one of them": (LAYERS, X, lambda w, x: squared(scan(step, x, w) @ w[2])),
        "overlapping parts of layers": (
            draw(2, 6, 9),
            X,
            lambda w, x: squared(scan(lambda h, v: (step(h, v[:, :6])[0] @ v[:, 3:], None), x, w)),
        ),
        "layers in branches": (
            LAYERS,
            X,
            lambda w, x: squared(
                scan(
                    lambda h, v: (lax.cond(positive(h), lambda: h @ v, lambda: h @ v.T), None), x, w
                )
            ),
        ),
    },
    OPAQUE: {
        "changed in the carry": (
            SQUARE,
            X,
            lambda w, x: squared(
                scan(lambda c, _: ((c[0] / 2, step(c[1], c[0])[0]), None), (w, x), length=2)[1]
            ),
        ),
        "exchanged in the carry": (
            (SQUARE, SQUARE / 2),
            X,
            lambda p, x: squared(
                scan(lambda c, _: ((c[1], c[0], step(c[2], c[0])[0]), None), (*p, x), length=3)[2]
            ),
        ),
        "stacked by the loop": (
            SQUARE,
            X,
            lambda w, x: squared(x @ jnp.sum(lax.scan(lambda c, _: (c, w), 0, length=2)[1], 0)),
        ),
        "summed by the loop": (
            LAYERS,
            X,
            lambda w, x: squared(x @ scan(lambda c, v: (c + v, None), jnp.zeros((6, 6)), w)),
        ),
        "handed back by remat": (
            SQUARE,
            X,
            lambda w, x: squared(x @ remat(lambda w, x: (w, jnp.sum(x)))(w, x)[0]),
        ),
        "chosen by a branch": (
            SQUARE,
            X,
            lambda w, x: squared(x @ lax.cond(positive(x), lambda: w, lambda: w.T)),
        ),
        "multiplied by the loop": (
            LAYERS,
            X,
            lambda w, x: squared(x @ lax.associative_scan(jnp.matmul, w)[-1]),
        ),
        "in a loop without the example": (
            SQUARE,
            X,
            lambda w, x: squared(x) * squared(times(2, lambda h: h @ w, jnp.ones((1, 6)))),
        ),
    },
}
policies = jax.checkpoint_policies
CASES = [(kind, name) for kind in PROGRAMS for name in PROGRAMS[kind]]


@pytest.mark.parametrize("kind, name", CASES)
def test_how_parameters_are_understood(kind, name):
    assert_understood(kind, *PROGRAMS[kind][name])


@pytest.mark.parametrize("kind, name", CASES)
def test_gradients_through_control_flow_are_those_of_jax(kind, name):
    assert_equals_grad(*PROGRAMS[kind][name])


def test_two_branches_may_be_one_function():
    def product(operands):
        return jnp.tanh(operands[0] @ operands[1])

    def loss(w, x):
        which = (x[0, 0] > 0).astype(jnp.int32)
        return squared(lax.switch(which, [product, product, lambda o: o[0]], (x, w)))

    assert_equals_grad(SQUARE, X, loss)


@pytest.mark.parametrize("name", ["shared", "layers", "and outside"])
def test_loops_of_no_steps_have_no_gradient(name):
    def again(w, x):
        return times(0, lambda h: step(h, w)[0], x)

    programs = {
        "shared": (SQUARE, lambda w, x: squared(again(w, x))),
        "layers": (jnp.zeros((0, 6, 6)), lambda w, x: squared(scan(step, x, w))),
        "and outside": (SQUARE, lambda w, x: squared(again(w, x) @ w)),
    }
    params, loss = programs[name]
    assert_equals_grad(params, X, loss)


def count(jaxpr):
    """The equations of a program, including those of loop bodies."""
    inner = [
        x for e in jaxpr.eqns for v in e.params.values() for x in jax.tree.leaves(v) if bodies(x)
    ]
    return len(jaxpr.eqns) + sum(count(bodies(x)) for x in inner)


def bodies(value):
    return value if hasattr(value, "eqns") else getattr(value, "jaxpr", None)


def test_loops_are_not_unrolled():
    def size(length):
        program, flat = traced(draw(length, 6, 6), X, lambda w, x: squared(scan(step, x, w)))
        (use,) = find_uses(program, 1)[0]
        run = lambda *args: differentiate(program, [(use, HoldValues())], [], args)  # noqa: E731
        jaxpr = jax.make_jaxpr(run)(*flat, X[0])
        (reading,) = jax.eval_shape(run, *flat, X[0])[2]
        assert reading.h[0].shape == reading.g.shape == (length, 1, 6)
        return count(jaxpr.jaxpr)

    assert size(2) == size(50)


def test_what_leaves_a_branch_that_is_not_taken_is_zero():
    program, flat = traced(
        W, X, lambda w, x: squared(lax.cond(positive(x), lambda: x @ w, lambda: x[:, :3]))
    )
    (use,) = find_uses(program, 1)[0]
    for sign in (-1.0, 1.0):
        x = sign * jnp.abs(X[0])
        reading = differentiate(program, [(use, HoldValues())], [], [*flat, x])[2][0]
        np.testing.assert_array_equal(reading.h[0], x if sign > 0 else jnp.zeros_like(x))
        assert np.all(reading.g == 0) == (sign < 0)


@pytest.mark.parametrize("kind", ["manual", "explicit"])
def test_branches_on_a_mesh(kind):
    batch = draw(8, 6)
    loss = lambda w, x: squared(lax.cond(positive(x), lambda: x @ w, lambda: x[:, :3]))  # noqa: E731
    fn = bevel.clipped_grad(loss, l2_clip_norm=9.0, norms="gram")
    expected = sum(np.asarray(jax.grad(loss)(W, x[None])) for x in batch)
    if kind == "manual":
        mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
        reduced = lambda w, x: lax.psum(fn(w, x), "data")  # noqa: E731
        sharded = jax.shard_map(reduced, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
        got = jax.jit(sharded)(W, batch)
    else:
        mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
        with jax.set_mesh(mesh):
            got = fn(
                *(
                    jax.device_put(a, NamedSharding(mesh, s))
                    for a, s in ((W, P()), (batch, P("data")))
                )
            )
    assert_close(np.asarray(got), expected, 2e-5)
