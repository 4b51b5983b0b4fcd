"""Terms shared by all examples are clipped with the rest, and never formed per example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from programs import Program, check, draw, reference

import bevel
from bevel.clipping.uses.find import find_uses
from bevel.clipping.uses.shared_terms import SharedTerm

B, T, D, K = 4, 6, 8, 10
X = draw(B, T, D) * 2.0 ** jnp.linspace(-2.0, 1.0, B)[:, None, None]
W, SQUARE, STACK = draw(D, K), draw(D, D), draw(3, D, D)


def total(y):
    return jnp.sum(jnp.sin(y))


def squares(tree):
    return sum(jnp.sum(w**2) for w in jax.tree.leaves(tree))


def layers(w, x):
    return jnp.sum(lax.scan(lambda c, own: (jnp.tanh(c @ own), None), x, w)[0] ** 2)


def again_and_again(w, x):
    return jnp.sum(lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=3)[0] ** 2)


def filtered(w, x):
    y = lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return total(y)


def looked_up(w, x):
    return total(w[jnp.int32(jnp.abs(x) * 3) % 6])


COMMON = {
    "weight decay": Program(lambda w, x: total(x @ w) + 0.1 * squares(w), W),
    "against the gradient": Program(lambda w, x: total(x @ w) - 3.0 * jnp.sum(w * w), W),
    "larger than all else": Program(lambda w, x: total(x @ w) + 100.0 * squares(w), W),
    "of several matrices": Program(
        lambda p, x: total(jnp.tanh(x @ p["a"]) @ p["b"]) + 0.1 * squares(p),
        {"a": SQUARE, "b": W},
    ),
    "two terms": Program(
        lambda w, x: total(x @ w) + 0.1 * squares(w) + 0.2 * jnp.sum(jnp.abs(w)) * jnp.mean(x), W
    ),
    "times the example": Program(lambda w, x: total(x @ w) * (1 + 0.01 * squares(w)), W),
    "by a product": Program(lambda w, x: total(x @ w) + jnp.vdot(w, w), W),
    "within a call": Program(jax.jit(lambda w, x: total(x @ w) + 0.1 * jax.jit(squares)(w)), W),
    "stacked layers": Program(lambda w, x: layers(w, x) + 0.1 * squares(w), STACK),
    "a loop that shares": Program(lambda w, x: again_and_again(w, x) + 0.1 * squares(w), SQUARE),
    "two uses that add": Program(
        lambda w, x: total(jnp.tanh(x @ w) @ w) + 0.1 * squares(w), SQUARE, tolerance=3e-3
    ),
    "two uses apart": Program(
        lambda w, x: total(x[..., :3] @ w[:3]) + total(x[..., 3:] @ w[3:]) + 0.1 * squares(w), W
    ),
    "a table": Program(lambda w, x: looked_up(w, x) + 0.1 * squares(w), draw(6, K)),
    "a kernel": Program(lambda w, x: filtered(w, x) + 0.1 * squares(w), draw(3, D, 2)),
    "with other inputs beside": Program(
        lambda w, x: (
            total(x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)
            + 0.1 * squares(w)
        ),
        W,
        tolerance=0.06,
    ),
}
KEPT = {
    "not a number but a vector": Program(
        lambda w, x: total(x @ w + jnp.sum(w**2, 0)[None, None]), W
    ),
    "within a loop": Program(
        lambda w, x: jnp.sum(
            lax.scan(lambda c, own: (c @ own + 0.01 * jnp.sum(own**2), None), x, w)[0]
        ),
        STACK,
    ),
    "nothing else": Program(lambda w, x: jnp.sum(x) * jnp.sum(w**2), W),
}


@pytest.mark.parametrize("name", COMMON)
def test_equals_a_loop_of_grads(name):
    program = COMMON[name]
    check(Program(program.loss, program.params, X, tolerance=program.tolerance), norms="gram")


@pytest.mark.parametrize("name", COMMON)
def test_the_terms_are_found(name):
    program = COMMON[name]
    flat, tree = jax.tree.flatten(program.params)
    loss = lambda *args: program.loss(jax.tree.unflatten(tree, args[:-1]), args[-1])  # noqa: E731
    for uses in find_uses(jax.make_jaxpr(loss)(*flat, X[:1]), len(flat)).values():
        assert sum(isinstance(use, SharedTerm) for use in uses) == (2 if name == "two terms" else 1)


@pytest.mark.parametrize("name", KEPT)
def test_other_terms_are_kept(name):
    program = KEPT[name]
    check(Program(program.loss, program.params, X))
    fn = bevel.clipped_grad(program.loss, l2_clip_norm=1.0, norms="gram")
    assert {row.way for row in bevel.explain(fn, program.params, X).rows} == {"keep"}


def test_a_coefficient_that_is_an_argument():
    loss = lambda w, x, c: total(x @ w) + c * squares(w)  # noqa: E731
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, norms="gram", batch_argnums=1)
    got = fn(W, X, jnp.float32(0.3))
    _, expected, _ = reference(lambda w, x: loss(w, x, 0.3), W, X, clip_norm=1.0)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e12])
def test_no_contribution_is_longer_than_its_clip_norm(scale):
    """The bound holds for the actual contribution, even where both parts nearly cancel."""
    w = jnp.asarray(W) / jnp.linalg.norm(W)
    loss = lambda w, x: scale * (jnp.sum(x * w) - 0.5 * jnp.sum(w * w))  # noqa: E731
    x = jnp.stack([w, w * (1 + 1e-3), w + 1e-4 * draw(D, K), draw(D, K)])
    fn = bevel.clipped_grad(loss, l2_clip_norm=0.5, keep_batch_dim=False, norms="gram")
    for i in range(4):
        assert float(jnp.linalg.norm(fn(w, x[i : i + 1]))) <= 0.5


def test_examples_that_do_not_count():
    loss = lambda w, x: total(x @ w) + 0.1 * squares(w)  # noqa: E731
    _, expected, _ = reference(loss, W, X[:2], clip_norm=1.0)
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0, norms="gram")
    wrong = X.at[3].set(jnp.nan)
    got = fn(W, wrong, is_padding_example=jnp.array([False, False, True, False]))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_nothing_of_the_size_of_a_gradient_is_formed_for_each_example():
    w, x = draw(64, 96), draw(16, 3, 64)
    loss = lambda w, x: total(x @ w) + 0.1 * squares(w)  # noqa: E731
    fn = bevel.clipped_grad(loss, l2_clip_norm=1.0)
    largest = max(
        int(np.prod(v.aval.shape)) for eqn in jax.make_jaxpr(fn)(w, x).eqns for v in eqn.outvars
    )
    assert largest < 16 * 64 * 96
