"""Which uses of a parameter are found, and how the gradients of several uses add."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from clipping.uses.test_taps import (
    OPAQUE,
    OVERLAPPING,
    QUICK,
    TAPPED,
    W,
    X,
    assert_equals_grad,
    assert_understood,
    draw,
    squared,
    traced,
    understood,
)
from compare import assert_close
from jax import lax

import bevel
from bevel.clipping.norms.registry import SEPARATE, SHARED
from bevel.clipping.uses.find import find_uses

SQUARE, ROWS = draw(6, 6) / 2, draw(2, 1, 4, 6)
TABLE, TOKENS = draw(5, 6), jnp.array([[[0, 1, 1]], [[4, 2, 4]]])
HEADS, SPLIT = draw(2, 3, 5), draw(2, 1, 4, 2, 3)


def by_head(x, w):
    return jnp.einsum("bthd,hdk->bthk", x, w)


def step(h, w):
    return jnp.tanh(h @ w), None


PROGRAMS = {
    TAPPED: {
        "used twice": (W, ROWS, lambda w, x: squared(x @ w + jnp.tanh(x) @ w)),
        "x @ w @ w.T": (W, X, lambda w, x: squared(x @ w @ w.T)),
        "transposed and as it is": (SQUARE, ROWS, lambda w, x: squared(x @ w + jnp.tanh(x) @ w.T)),
        "with contracted dimensions exchanged": (
            draw(4, 4, 3),
            draw(2, 1, 4, 4),
            lambda w, x: (
                squared(jnp.einsum("bij,ijk->bk", x, w))
                + squared(jnp.einsum("bji,ijk->bk", jnp.tanh(x), w))
            ),
        ),
        "by heads, there and back": (
            HEADS,
            SPLIT,
            lambda w, x: squared(jnp.einsum("bthk,hdk->bthd", jnp.tanh(by_head(x, w)), w)),
        ),
        "one jit called twice": (
            SQUARE,
            X,
            lambda w, x: squared((f := jax.jit(lambda x: jnp.tanh(x @ w)))(f(x))),
        ),
        "selected by the example": (
            SQUARE,
            X,
            lambda w, x: squared(jnp.where(x > 0, x @ w, jnp.tanh(x) @ w.T)),
        ),
        "stopped behind the product": (
            W,
            X,
            lambda w, x: squared(lax.stop_gradient(x @ w) * (x @ w)),
        ),
        "in a gradient": (
            SQUARE,
            X,
            lambda w, x: squared(jax.grad(lambda x: squared(jnp.tanh(x @ w) @ w))(x)),
        ),
        "a forward derivative": (
            SQUARE,
            X,
            lambda w, x: squared(jax.jvp(lambda w: jnp.tanh(x @ w), (w,), (w,))[1]),
        ),
        "a row for each index": (TABLE, TOKENS, lambda w, k: squared(w[k])),
        "a row by index": (TABLE, TOKENS, lambda w, k: squared(w[k[0, 0]])),
        "a matrix by index": (
            draw(5, 3, 2),
            TOKENS,
            lambda w, k: squared(jnp.sin(k).astype(jnp.float32) @ w[k[0, 1]]),
        ),
        "entries by two indices": (
            draw(5, 6),
            TOKENS,
            lambda w, k: squared(w[k, (k + k[:, ::-1]) % 6]),
        ),
        "indices in the last dimensions, reversed": (
            draw(2, 5, 6),
            TOKENS,
            lambda w, k: squared(jnp.transpose(w, (0, 2, 1))[:, k, k]),
        ),
        "indices that repeat, looked up again": (
            TABLE,
            TOKENS,
            lambda w, k: squared(w[k] + jnp.tanh(w[k[:, ::-1]])),
        ),
        "negative indices": (TABLE, TOKENS, lambda w, k: squared(w[-k] + w[k - 5])),
        "indices outside, to be filled": (
            TABLE,
            TOKENS,
            lambda w, k: squared(w.at[2 * k].get(mode="fill", fill_value=0.5)),
        ),
        "indices outside, to be clipped": (
            TABLE,
            TOKENS,
            lambda w, k: squared(w.at[2 * k].get(mode="clip")),
        ),
        "indices outside, to be wrapped": (
            TABLE,
            TOKENS,
            lambda w, k: squared(jnp.take(w, 3 * k, axis=0, mode="wrap")),
        ),
        "slices that start outside": (
            TABLE,
            TOKENS,
            lambda w, k: squared(lax.dynamic_slice(w, (3 * k[0, 1] - 4, 0), (1, 6))),
        ),
        "a cut of a table": (TABLE, TOKENS, lambda w, k: squared(w[1:][k % 4])),
        "tied": (TABLE, TOKENS, lambda w, k: squared(jnp.tanh(w[k]) @ w.T)),
        "tied, more dimensions, permuted": (
            draw(5, 2, 3),
            TOKENS,
            lambda w, k: squared(
                jnp.einsum("btij,ijv->btv", jnp.tanh(w[k]), jnp.transpose(w, (1, 2, 0)))
            ),
        ),
        "tied by columns": (
            draw(6, 5),
            TOKENS,
            lambda w, k: squared(jnp.einsum("dbt,dv->btv", jnp.tanh(w[:, k]), w)),
        ),
        "parts of rows": (
            TABLE,
            TOKENS,
            lambda w, k: squared(w[:, :2][k]) + squared(w[:, 2:][k[:, ::-1]]),
        ),
    },
    OVERLAPPING: {
        "vectors looked up twice": (
            draw(5),
            TOKENS,
            lambda w, k: squared(w[k] + 2 * w[k[:, ::-1]]),
        ),
        "by heads, along another dimension": (
            draw(2, 2, 5),
            draw(2, 1, 4, 2, 2),
            lambda w, x: squared(by_head(x, w)) + squared(jnp.einsum("bthd,hdk->btdk", x, w)),
        ),
        "rows and entries": (
            TABLE,
            TOKENS,
            lambda w, k: squared(w[k]) + squared(w[k, k]),
        ),
        "mapped over, twice": (
            draw(2, 6, 6),
            X,
            lambda w, x: squared(jax.vmap(lambda v: jnp.tanh(x @ v) @ v)(w)),
        ),
    },
    OPAQUE: {
        "two rows by index": (
            TABLE,
            TOKENS,
            lambda w, k: squared(lax.dynamic_slice(w, (k[0, 0], 0), (2, 6))),
        ),
        "one table for each row": (
            draw(3, 5, 2),
            TOKENS,
            lambda w, k: squared(jax.vmap(lambda t, i: t[i])(w, k[0])),
        ),
        "rows at constant indices": (
            TABLE,
            X,
            lambda w, x: squared(x * w[jnp.array([1, 1, 2])]),
        ),
    },
}
CASES = [(kind, name) for kind in PROGRAMS for name in PROGRAMS[kind]]


@pytest.mark.parametrize("kind, name", CASES)
def test_how_parameters_are_understood(kind, name):
    assert_understood(kind, *PROGRAMS[kind][name])


@pytest.mark.parametrize("kind, name", CASES)
def test_the_gradients_of_all_uses_add_before_the_norm(kind, name):
    assert_equals_grad(*PROGRAMS[kind][name])


def test_a_table_looked_up_by_two_indices_in_both_orders():
    indices = jnp.array([[0, 1, 4], [2, 2, 0]])
    loss = lambda w, k: squared(w[k[0], k[1]] + jnp.transpose(w, (1, 0, 2))[k[2], k[0]])  # noqa: E731
    assert_equals_grad(draw(4, 5, 3), indices, loss)


def test_indices_outside_of_a_table_have_no_gradient():
    assert_equals_grad(TABLE, TOKENS, lambda w, k: squared(w[2 * k]))


def test_indices_beyond_int32_are_clipped():
    def loss(w, k):
        rows = [lax.dynamic_slice(w, (i, jnp.uint32(0)), (1, 6)) for i in k]
        return squared(rows[0] + jnp.tanh(rows[1]))

    assert_equals_grad(TABLE, jnp.array([[2**31 + 3, 4], [1, 2**32 - 1]], jnp.uint32), loss)


def test_indices_of_few_bits_into_a_long_table_are_left_to_jax():
    """In uint8 the length of the table wraps around, and XLA clips only some of these indices."""
    table, indices = draw(300, 3), jnp.array([[40], [200]], jnp.uint8)

    def loss(w, k):
        return squared(lax.dynamic_slice(w, (k[0], jnp.uint8(0)), (1, 3)))

    assert find_uses(jax.make_jaxpr(loss)(table, indices[0]), 1) == {0: None}


def test_uses_in_float32_and_float64_add():
    with jax.enable_x64(True):
        w, x = (jnp.asarray(a, jnp.float64) for a in (SQUARE, ROWS))

        def loss(w, x):
            narrow = x.astype(jnp.float32) @ w.astype(jnp.float32)
            return squared(jnp.tanh(x) @ w) + squared(narrow.astype(jnp.float64))

        assert_equals_grad(w, x, loss)


def test_one_parameter_does_not_change_what_is_known_of_another():
    params = {"gate": draw(), "head": draw(6, 3), "table": TABLE, "unused": W, "w": SQUARE}

    def loss(p, k):
        h = jnp.tanh(p["table"][k] @ p["w"])
        return squared(lax.cond(p["gate"] > 0, lambda: h, lambda: 2 * h) @ p["head"])

    assert understood(params, TOKENS, loss) == [OPAQUE, TAPPED, TAPPED, "unused", TAPPED]
    assert_equals_grad(params, TOKENS, loss)


def test_uses_name_their_equations_and_where_they_stand():
    def loss(p, x):
        inner = jax.jit(lambda h, w: jnp.tanh(h @ w))
        block = jax.checkpoint(lambda h, w: (inner(inner(h, w), w), None))
        h = lax.scan(lambda h, w: (block(h, w)[0], None), x, p["layers"])[0]
        h = lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h @ p["shared"]), h)
        return squared(lax.cond(x[0, 0] > 0, lambda: h @ p["one"], lambda: h))

    params = {"layers": draw(3, 6, 6), "one": SQUARE, "shared": SQUARE}
    program, flat = traced(params, X, loss)
    layers, (one,), (shared,) = find_uses(program, len(flat)).values()
    assert [use.loops for use in layers] == [((SEPARATE, 3),)] * 2
    assert shared.loops == ((SHARED, 2),) and one.loops == ()
    assert [use.in_remat for use in (*layers, one, shared)] == [True, True, False, False]
    assert [use.in_branch for use in (*layers, one, shared)] == [False, False, True, False]
    # Both calls of the jit share one body: only the path distinguishes their equations.
    assert layers[0].eqn is layers[1].eqn and layers[0].path != layers[1].path
    assert all(use.path[-1] == id(use.eqn) for use in (*layers, one, shared))


def test_shardings_of_a_nested_jit_are_left_to_jax():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = jax.jit(lambda h, w: jnp.tanh(h @ w), in_shardings=(place, place))
    # At the top level they become constraints, but not in a loop.
    assert understood(SQUARE, X, lambda w, x: squared(placed(x, w))) == [TAPPED]
    looped = (SQUARE, X, lambda w, x: squared(lax.fori_loop(0, 2, lambda _, h: placed(h, w), x)))
    assert understood(*looped) == [OPAQUE]
    assert_equals_grad(*looped)


# End to end, on five examples.
BATCH = {"x": draw(5, 6) * jnp.array([0.1, 0.5, 1.0, 2.0, 4.0])[:, None], "k": jnp.arange(15) % 5}
BATCH["k"] = BATCH["k"].reshape(5, 3)
LAYERS = draw(3, 6, 6) / 2


def layers(w, b, wrap=lambda f: f, **options):
    return squared(lax.scan(wrap(step), b["x"], w, **options)[0])


WHOLE = {
    "used twice": (SQUARE, lambda w, b: squared(jnp.tanh(b["x"] @ w) @ w.T)),
    "cut": (draw(6, 9), lambda w, b: squared(b["x"] @ w[:, :5]) + squared(b["x"] @ w[:, 5:])),
    "overlapping": (draw(6, 6), lambda w, b: squared(b["x"] @ w[:, :4] + b["x"] @ w[:, 2:])),
    "tied": (TABLE, lambda w, b: squared(jnp.tanh(w[b["k"]]) @ w.T)),
    "index": (draw(5, 6, 3), lambda w, b: squared(b["x"] @ w[b["k"][0, 0]])),
    "layers": (LAYERS, layers),
    "layers, reversed": (LAYERS, lambda w, b: layers(w, b, reverse=True, unroll=2)),
    "layers, remat": (LAYERS, lambda w, b: layers(w, b, jax.checkpoint)),
    "remat of layers": (LAYERS, lambda w, b: jax.checkpoint(layers)(w, b)),
    "shared": (
        SQUARE,
        lambda w, b: squared(lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ w), b["x"]) @ w),
    ),
    "branches": (
        {"a": SQUARE, "b": SQUARE / 2},
        lambda p, b: squared(
            lax.cond(b["k"][0, 0] > 1, lambda: b["x"] @ p["a"], lambda: b["x"] @ p["b"] @ p["a"])
        ),
    ),
    "decayed": (
        {"w": W, "v": SQUARE},
        lambda p, b: squared(jnp.tanh(b["x"] @ p["v"]) @ p["w"]) + jnp.sum(p["w"] ** 2) / 9,
    ),
}
NORMS = ("auto", "gram", "product", "outer")


@pytest.mark.parametrize("number, name", list(enumerate(WHOLE)))
def test_clipped_sums_equal_the_oracle(number, name):
    params, loss = WHOLE[name]

    # Divide by the clip norm, so that it can be traced and one program serves both.
    @functools.partial(jax.jit, compiler_options=QUICK)
    def clipped(params, batch, clip_norm):
        fn = bevel.clipped_grad(
            loss,
            l2_clip_norm=clip_norm,
            rescale_to_unit_norm=True,
            return_grad_norms=True,
            norms=NORMS[number % len(NORMS)],
        )
        return fn(params, batch)

    norms = oracle.clipped_sum(loss, params, BATCH, clip_norm=1.0).norms
    for clip_norm in (np.min(norms) / 3, np.max(norms) * 3):
        expected = oracle.clipped_sum(loss, params, BATCH, clip_norm=clip_norm, rescale=True)
        got, aux = clipped(params, BATCH, jnp.float32(clip_norm))
        assert_close(got, expected.grad, 1e-4)  # clipping includes the slack of the norm
        np.testing.assert_allclose(aux.grad_norms, expected.norms, rtol=2e-5)
