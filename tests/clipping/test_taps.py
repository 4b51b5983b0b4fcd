"""Which parameters are tapped, and that taps plus kept gradients make up `jax.grad`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_close
from jax import lax

from bevel.clipping.equations import inline_calls
from bevel.clipping.norms import rule_for
from bevel.clipping.taps import differentiate, find_taps

TOLERANCE = 2e-5


def draw(*shape):
    rng = np.random.default_rng(shape)
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


W = draw(6, 3)
X = draw(1, 6)


def squared(y):
    return jnp.mean(jnp.tanh(y) ** 2)


def dot(x, w, x_dims, w_dims, **options):
    return lax.dot_general(x, w, ((x_dims, w_dims), ((), ())), **options)


def to_half(x):
    return x.astype(jnp.float16)


@jax.custom_vjp
def half(y):
    return y


half.defvjp(lambda y: (y, None), lambda _, g: (g / 2,))

# name: (parameters, example, loss). Every parameter must be tapped.
TAPPED = {
    "plain": (W, X, lambda w, x: squared(x @ w)),
    "one of two": ((W, draw(3, 3)), X, lambda p, x: squared(jnp.tanh(x @ p[0]) @ p[1])),
    "on the left": (W, X, lambda w, x: squared(w.T @ x.T)),
    "transposed": (draw(3, 6), X, lambda w, x: squared(x @ w.T)),
    "permuted": (
        draw(3, 2, 6),
        X,
        lambda w, x: squared(dot(x, jnp.transpose(w, (2, 0, 1)), (1,), (0,))),
    ),
    "reshaped": (draw(2, 9), X, lambda w, x: squared(x @ w.reshape(6, 3))),
    "reshaped and transposed": (
        draw(2, 3, 3),
        X,
        lambda w, x: squared(x @ w.reshape(3, 6).T.reshape(2, 9).reshape(6, 3)),
    ),
    "squeezed": (draw(6, 1, 3), X, lambda w, x: squared(x @ jnp.squeeze(w, 1))),
    "cast": (
        W,
        X,
        lambda w, x: squared(x @ to_half(w).astype(jnp.float32)),
    ),
    "in nested jits": (
        W,
        X,
        lambda w, x: jax.jit(lambda w: squared(jax.jit(lambda x, w: x @ w)(x, w)))(w),
    ),
    "contracted twice": (
        draw(3, 5, 2),
        draw(1, 2, 3),
        lambda w, x: squared(dot(x, w, (2, 1), (0, 2))),
    ),
    "contracted out of order": (
        draw(2, 4, 5, 3),
        draw(1, 3, 5, 2),
        lambda w, x: squared(dot(x, w, (2, 3, 1), (2, 0, 3))),
    ),
    "vector and vector": (draw(6), draw(6), lambda w, x: jnp.sin(jnp.dot(x, w))),
    "outer product with one number": (
        draw(5),
        draw(),
        lambda w, x: squared(dot(x, w, (), ())),
    ),
    "few rows": (draw(30, 40), draw(1, 3, 30), lambda w, x: squared(x @ w)),
    "few rows, on the left": (
        draw(40, 30),
        draw(2, 3, 30),
        lambda w, x: squared(dot(w, x, (1,), (2,))),
    ),
    "under a rule of the user": (W, X, lambda w, x: squared(half(x @ w))),
    "cast, with a wider product": (
        W,
        X,
        lambda w, x: squared(
            dot(*map(to_half, (x, w)), (1,), (0,), preferred_element_type=jnp.float32)
        ),
    ),
    "without effect": (W, X, lambda w, x: jnp.sum(x) + 0 * jnp.sum(x @ w)),
    "rounded away": (W, X, lambda w, x: squared(jnp.round(x @ w)) + jnp.sum(x)),
}

# The same, and no parameter may be tapped.
KEPT = {
    "used twice": (W, X, lambda w, x: squared(x @ w + jnp.tanh(x) @ w)),
    "used again in its own input": (W, X, lambda w, x: squared((x * w[:, 0][None]) @ w)),
    "used again behind stop_gradient": (
        W,
        X,
        lambda w, x: squared(x @ w + x @ lax.stop_gradient(w)),
    ),
    "x @ w @ w.T": (W, X, lambda w, x: squared(x @ w @ w.T)),
    "with itself": (W, X, lambda w, x: squared(x[:, :3] @ (w.T @ w))),
    "transposed and as it is": (draw(6, 6), X, lambda w, x: squared(x @ w + x @ w.T)),
    "jit called twice": (
        draw(6, 6),
        X,
        lambda w, x: squared((f := jax.jit(lambda x: jnp.tanh(x @ w)))(f(x))),
    ),
    "added to the loss": (W, X, lambda w, x: squared(x @ w) + jnp.sum(w)),
    "sliced": (draw(9, 3), X, lambda w, x: squared(x @ w[:6])),
    "reversed": (W, X, lambda w, x: squared(x @ jnp.flip(w, 0))),
    "broadcast": (draw(6), X, lambda w, x: squared(x @ jnp.broadcast_to(w[:, None], (6, 3)))),
    "stretched": (draw(6, 1), X, lambda w, x: squared(x @ jnp.broadcast_to(w, (6, 3)))),
    "joined": (
        (draw(6, 2), draw(6, 1)),
        X,
        lambda p, x: squared(x @ jnp.concatenate(p, axis=1)),
    ),
    "scaled": (W, X, lambda w, x: squared(x @ (2 * w))),
    "quantised": (
        5 * W,
        X,
        lambda w, x: squared(x @ w.astype(jnp.int32).astype(jnp.float32)),
    ),
    "complex": (
        W,
        X,
        lambda w, x: squared(jnp.real(x.astype(jnp.complex64) @ w.astype(jnp.complex64))),
    ),
    "under a rule of the user": (W, X, lambda w, x: squared(x @ half(w))),
    "in a scan": (
        draw(6, 6),
        X,
        lambda w, x: squared(lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, 2)[0]),
    ),
    "in one branch": (
        W,
        X,
        lambda w, x: squared(lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: 2 * (x @ w))),
    ),
    "in remat": (W, X, lambda w, x: squared(jax.checkpoint(jnp.dot)(x, w))),
    "batched product": (
        draw(2, 3, 4),
        draw(1, 2, 3),
        lambda w, x: squared(jnp.einsum("bhd,hdk->bhk", x, w)),
    ),
    "times whole numbers": (
        W,
        jnp.arange(6)[None],
        lambda w, x: squared(dot(x, w, (1,), (0,), preferred_element_type=jnp.float32)),
    ),
    "times a constant": (W, X, lambda w, x: jnp.sum(x) * squared(jnp.ones((1, 6)) @ w)),
    "times another parameter": (
        (W, draw(3, 3)),
        X,
        lambda p, x: squared(x @ (p[0] @ p[1])),
    ),
    "many rows": (draw(3, 4), draw(1, 9, 3), lambda w, x: squared(x @ w)),
    "no rows": (draw(6, 3), draw(0, 6), lambda w, x: jnp.sum(x @ w)),
    "nothing to contract": (draw(0, 3), draw(1, 0), lambda w, x: jnp.sum(x @ w)),
    "unused": (W, X, lambda w, x: jnp.sum(x)),
    "the loss itself": (draw(), X, lambda w, x: w),
}

# A tap is allowed where it is right.
EITHER = {
    "reshaped with permuted dimensions": (
        draw(2, 9),
        X,
        lambda w, x: squared(x @ lax.reshape(w, (6, 3), (1, 0))),
    ),
    "transposed by a reshape": (
        draw(3, 6),
        X,
        lambda w, x: squared(x @ lax.reshape(w, (6, 3), (1, 0))),
    ),
    "copied": (W, X, lambda w, x: squared(x @ jnp.array(w, copy=True))),
    "behind a barrier": (W, X, lambda w, x: squared(x @ lax.optimization_barrier(w))),
    "by indices": (W, jnp.array([2, 2, 5]), lambda w, x: squared(w[x])),
    "convolved": (
        draw(2, 3, 3),
        draw(1, 3, 8),
        lambda w, x: squared(lax.conv_general_dilated(x, w, (2,), [(2, 1)], rhs_dilation=(2,))),
    ),
    "by a ref": (W, X, lambda w, x: squared(through_ref(x @ w))),
}


TABLES = {"tapped": TAPPED, "kept": KEPT, "either": EITHER}


def through_ref(y):
    ref = jax.new_ref(y)
    ref[...] = jnp.tanh(ref[...])
    return jax.freeze(ref)


def traced(params, example, loss):
    flat, tree = jax.tree.flatten(params)
    arguments = [*flat, example]

    def program(*arguments):
        *flat, example = arguments
        return loss(jax.tree.unflatten(tree, flat), example)

    return inline_calls(jax.make_jaxpr(program)(*arguments), arguments), flat


@pytest.mark.parametrize("name", TAPPED)
def test_tapped(name):
    program, flat = traced(*TAPPED[name])
    assert [tap.param for tap in find_taps(program, len(flat))] == list(range(len(flat)))


@pytest.mark.parametrize("name", KEPT)
def test_not_tapped(name):
    program, flat = traced(*KEPT[name])
    assert find_taps(program, len(flat)) == []


def test_a_parameter_that_leaves_the_program_is_kept():
    flat = [W, draw(3, 6)]
    program = jax.make_jaxpr(lambda w, v, x: (squared(x @ w) + squared(x @ v.T), v.T))(*flat, X)
    assert [tap.param for tap in find_taps(program, 2)] == [0]


@pytest.mark.parametrize("table, name", [(t, n) for t in TABLES for n in TABLES[t]])
def test_differentiate_equals_grad(table, name):
    params, example, loss = TABLES[table][name]
    tolerance = 2e-3 if name.startswith("cast") else TOLERANCE
    program, flat = traced(params, example, loss)
    taps = find_taps(program, len(flat))

    @jax.jit
    def gradients(flat, example):
        outputs, kept, others, cotangents = differentiate(program, taps, flat, [example])
        gradient, norms = dict(zip(kept_of(flat, taps), kept, strict=True)), {}
        for tap, h, g in zip(taps, others, cotangents, strict=True):
            rule = rule_for(tap.eqn.primitive.name)
            total = rule.weighted_sum(tap.eqn, tap.operand, h[None], g[None])
            gradient[tap.param] = tap.to_param(total)
            norms[tap.param] = rule.norm(tap.eqn, tap.operand, h[None], g[None])
        return outputs[0], [gradient[i] for i in range(len(flat))], norms

    value, got, norms = gradients(flat, example)
    expected_value, expected = jax.value_and_grad(loss)(params, example)
    expected = jax.tree.leaves(expected)
    np.testing.assert_allclose(value, expected_value, rtol=tolerance)
    assert_close(got, expected, tolerance)
    for i, norm in norms.items():
        exact = np.linalg.norm(np.asarray(expected[i], np.float64))
        np.testing.assert_allclose(norm.estimate[0], exact, rtol=tolerance)
        assert norm.upper[0] >= exact * (1 - tolerance)


def kept_of(flat, taps):
    tapped = {tap.param for tap in taps}
    return [i for i in range(len(flat)) if i not in tapped]
