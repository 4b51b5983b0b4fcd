"""Gradients read at taps and materialised gradients together equal `jax.grad`, for every way.

Tables of small programs state how each parameter is understood. `test_views.py`, `test_find.py` and
`test_tapped_program.py` have further tables for the tests below.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_close
from jax import lax

import bevel
from bevel.clipping.accumulate.coefficients import norm_of_parts
from bevel.clipping.choose import choose_one
from bevel.clipping.norms import materialised_norm
from bevel.clipping.plan import tapped_parameter
from bevel.clipping.program.equations import inline_calls
from bevel.clipping.uses import taps
from bevel.clipping.uses.find import find_uses
from bevel.clipping.uses.taps import HoldValues, differentiate

TOLERANCE = 2e-5
COEFFICIENTS = (0.25, 1.5)  # of the two examples in every table

# Compilation takes nearly all of the time.
QUICK = {"xla_backend_optimization_level": 0}

# What is known about a parameter.
TAPPED = "tapped"  # its uses are understood, and their gradients need not be formed
OVERLAPPING = "overlapping"  # its uses are understood, but not how their gradients add
OPAQUE = "opaque"  # one of its uses has no rule
UNUSED = "unused"


def draw(*shape):
    rng = np.random.default_rng(shape)
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def squared(y):
    return jnp.mean(jnp.tanh(y / 2) ** 2)


def dot(x, w, x_dims, w_dims, **options):
    return lax.dot_general(x, w, ((x_dims, w_dims), ((), ())), **options)


W, X = draw(6, 3), draw(2, 1, 6)  # two examples, as in all tables


def traced(params, batch, loss):
    """The program of one example, and the parameters as its first inputs."""
    flat, tree = jax.tree.flatten(params)
    rows, row_tree = jax.tree.flatten(jax.tree.map(lambda x: x[0], batch))

    def program(*arguments):
        own, example = arguments[: len(flat)], arguments[len(flat) :]
        return loss(jax.tree.unflatten(tree, own), jax.tree.unflatten(row_tree, example))

    return inline_calls(jax.make_jaxpr(program)(*flat, *rows), [*flat, *rows]), flat


def decided(program, flat, way=None):
    """The choice for each parameter: `way` where it is possible."""
    found = find_uses(program, len(flat))
    return [choose_one(i, found[i], flat[i], way) for i in range(len(flat))]


def understood(params, batch, loss):
    """What is known about each parameter."""
    program, flat = traced(params, batch, loss)
    found = find_uses(program, len(flat))

    def kind(i, chosen):
        if not found[i]:
            return OPAQUE if found[i] is None else UNUSED
        return TAPPED if set(chosen.costs) > {"keep"} else OVERLAPPING

    return [kind(i, chosen) for i, chosen in enumerate(decided(program, flat))]


def assert_understood(kind, params, batch, loss):
    assert understood(params, batch, loss) == [kind] * len(jax.tree.leaves(params))


def assert_equals_grad(params, batch, loss, tolerance=TOLERANCE):
    """Values, weighted sums over the examples, and the norm of each parameter's gradients."""
    program, flat = traced(params, batch, loss)
    tree = jax.tree.structure(params)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def everything(flat, batch):
        one = jax.value_and_grad(lambda flat, x: loss(jax.tree.unflatten(tree, flat), x))
        return lax.map(lambda x: one(flat, x), batch), *taken(program, flat, jax.tree.leaves(batch))

    (values, gradients), got_values, found = everything(flat, batch)
    gradients = [np.asarray(g, np.float64) for g in gradients]
    sums = [np.tensordot(np.array(COEFFICIENTS), g, axes=1) for g in gradients]
    exact = [np.linalg.norm(g.reshape(len(g), -1), axis=1) for g in gradients]
    np.testing.assert_allclose(got_values, values, rtol=tolerance)
    for way, (got, norms) in found.items():
        assert_close(list(got.values()), [sums[i] for i in got], tolerance)
        for i, norm in norms.items():
            margin = 1e-6 * np.max(exact[i])
            np.testing.assert_allclose(norm.estimate, exact[i], tolerance, margin, err_msg=way)
            assert np.all(norm.upper >= exact[i] * (1 - tolerance)), way


def taken(program, flat, rows):
    """Values, and for each way the sums and norms of the parameters for which it is possible."""
    every = decided(program, flat)
    ways = {i: [way for way in c.costs if way != "keep"] for i, c in enumerate(every)}
    taps = [
        tapped_parameter(decided(program, flat, w[0])[i], flat[i]) for i, w in ways.items() if w
    ]
    reads = [(use, HoldValues()) for tap in taps for use in tap.uses]
    coefficients = jnp.asarray(COEFFICIENTS, jnp.float32)

    def added(gradient):
        return jnp.tensordot(coefficients, gradient.astype(jnp.float32), axes=1)

    # Every parameter is both materialised and tapped, so one pass checks both.
    outputs, gradients, readings = jax.vmap(
        lambda rows: differentiate(program, reads, range(len(flat)), [*flat, *rows])
    )(rows)
    found = {"keep": ({i: added(g) for i, g in enumerate(gradients)}, {})}
    left = iter(readings)
    for tap in taps:
        made = tap.gradients([next(left) for _ in tap.uses])
        for way in ways[tap.param]:
            so = dataclasses.replace(tap, way=way)
            if way == "form":
                formed = so.formed(made)
                total, norm = added(formed), materialised_norm(formed)
            else:
                total = so.weighted_sum(made, coefficients, None)
                norm = norm_of_parts([m.norm for m in so.norms(made, scaled=True)])
            sums, norms = found.setdefault(way, ({}, {}))
            sums[tap.param], norms[tap.param] = total, norm
    return outputs[0], found


def to_half(x):
    return x.astype(jnp.float16)


@jax.custom_vjp
def half(y):
    return y


half.defvjp(lambda y: (y, None), lambda _, g: (g / 2,))


@jax.custom_jvp
def doubled(y):
    return y


doubled.defjvp(lambda primals, tangents: (primals[0], 2 * tangents[0]))


def through_ref(y):
    ref = jax.new_ref(y)
    ref[...] = jnp.tanh(ref[...])
    return jax.freeze(ref)


def convolve(x, w, **options):
    return lax.conv_general_dilated(x, w, (2,), [(2, 1)], **options)


# name: (parameters, two examples, loss)
PROGRAMS = {
    TAPPED: {
        "plain": (W, X, lambda w, x: squared(x @ w)),
        "two layers": ((W, draw(3, 3)), X, lambda p, x: squared(jnp.tanh(x @ p[0]) @ p[1])),
        "on the left": (W, X, lambda w, x: squared(w.T @ x.T)),
        "in nested jits": (
            W,
            X,
            lambda w, x: jax.jit(lambda w: squared(jax.jit(lambda x, w: x @ w)(x, w)))(w),
        ),
        "contracted out of order": (
            draw(2, 4, 5, 3),
            draw(2, 1, 3, 5, 2),
            lambda w, x: squared(dot(x, w, (2, 3, 1), (2, 0, 3))),
        ),
        "vector and vector": (draw(6), draw(2, 6), lambda w, x: jnp.sin(jnp.dot(x, w))),
        "outer product with one number": (
            draw(5),
            draw(2),
            lambda w, x: squared(dot(x, w, (), ())),
        ),
        "few rows, on the left": (
            draw(40, 30),
            draw(2, 2, 3, 30),
            lambda w, x: squared(dot(w, x, (1,), (2,))),
        ),
        "many rows": (draw(3, 4), draw(2, 1, 9, 3), lambda w, x: squared(x @ w)),
        "batched product": (
            draw(2, 3, 4),
            draw(2, 1, 2, 3),
            lambda w, x: squared(jnp.einsum("bhd,hdk->bhk", x, w)),
        ),
        "mapped over": (
            draw(2, 6, 3),
            X,
            lambda w, x: squared(jax.vmap(lambda v: x @ v)(w)),
        ),
        "under a rule of the user": (W, X, lambda w, x: squared(half(x @ w))),
        "under another": (W, X, lambda w, x: squared(doubled(x @ w))),
        "cast": (W, X, lambda w, x: squared(x @ to_half(w).astype(jnp.float32))),
        "cast, with a wider product": (
            W,
            X,
            lambda w, x: squared(
                dot(*map(to_half, (x, w)), (1,), (0,), preferred_element_type=jnp.float32)
            ),
        ),
        "cast, and as it is": (
            W,
            X,
            lambda w, x: squared(x @ w + (to_half(jnp.tanh(x)) @ to_half(w)).astype(jnp.float32)),
        ),
        "without effect": (W, X, lambda w, x: jnp.sum(x) + 0 * jnp.sum(x @ w)),
        "rounded away": (W, X, lambda w, x: squared(jnp.round(x @ w)) + jnp.sum(x)),
        "by a ref": (W, X, lambda w, x: squared(through_ref(x @ w))),
        "convolved": (
            draw(2, 3, 3),
            draw(2, 1, 3, 8),
            lambda w, x: squared(convolve(x, w, rhs_dilation=(2,))),
        ),
        "convolved in groups, two images": (
            draw(4, 1, 3),
            draw(2, 2, 2, 8),
            lambda w, x: squared(convolve(x, w, feature_group_count=2)),
        ),
        "behind a loop of the example": (
            W,
            X,
            lambda w, x: squared(
                lax.while_loop(lambda s: jnp.sum(s**2) > 1, lambda s: s / 2, x) @ w
            ),
        ),
    },
    OVERLAPPING: {
        "convolved twice": (
            draw(3, 3, 3),
            draw(2, 1, 3, 9),
            lambda w, x: squared(convolve(jnp.tanh(convolve(x, w)), w)),
        ),
    },
    OPAQUE: {
        "used again in its own input": (W, X, lambda w, x: squared((x * w[:, 0][None]) @ w)),
        "used again behind stop_gradient": (
            W,
            X,
            lambda w, x: squared(x @ w + x @ lax.stop_gradient(w)),
        ),
        "broadcast": (draw(6), X, lambda w, x: squared(x @ jnp.broadcast_to(w[:, None], (6, 3)))),
        "stretched": (draw(6, 1), X, lambda w, x: squared(x @ jnp.broadcast_to(w, (6, 3)))),
        "a bias": (draw(6), X, lambda b, x: squared(x + b[None])),
        "quantised": (5 * W, X, lambda w, x: squared(x @ w.astype(jnp.int32).astype(jnp.float32))),
        "complex": (
            W,
            X,
            lambda w, x: squared(jnp.real(x.astype(jnp.complex64) @ w.astype(jnp.complex64))),
        ),
        "under a rule of the user": (W, X, lambda w, x: squared(x @ half(w))),
        "under another": (W, X, lambda w, x: squared(x @ doubled(w))),
        "behind a barrier": (W, X, lambda w, x: squared(x @ lax.optimization_barrier(w))),
        "its diagonal": (draw(6, 6), X, lambda w, x: squared(jnp.einsum("bi,ii->bi", x, w))),
        "in a while": (
            W,
            X,
            lambda w, x: squared(
                lax.while_loop(lambda s: jnp.sum(s) > 9, lambda s: s / 2, lax.stop_gradient(w))[:1]
                + x @ w
            ),
        ),
        "times whole numbers": (
            W,
            jnp.arange(12).reshape(2, 1, 6),
            lambda w, x: squared(dot(x, w, (1,), (0,), preferred_element_type=jnp.float32)),
        ),
        "no rows": (W, draw(2, 0, 6), lambda w, x: jnp.sum(x @ w)),
        "nothing to contract": (draw(0, 3), draw(2, 1, 0), lambda w, x: jnp.sum(x @ w)),
        "the loss itself": (draw(), X, lambda w, x: w),
        "what is convolved": (
            draw(1, 3, 8),
            draw(2, 2, 3, 3),
            lambda w, x: squared(convolve(w, x)),
        ),
    },
    UNUSED: {"unused": (W, X, lambda w, x: jnp.sum(x))},
}
CASES = [(kind, name) for kind in PROGRAMS for name in PROGRAMS[kind]]


@pytest.mark.parametrize("kind, name", CASES)
def test_how_parameters_are_understood(kind, name):
    assert_understood(kind, *PROGRAMS[kind][name])


@pytest.mark.parametrize("kind, name", CASES)
def test_taps_and_kept_gradients_make_up_the_gradient(kind, name):
    tolerance = 2e-3 if name.startswith("cast") else TOLERANCE
    assert_equals_grad(*PROGRAMS[kind][name], tolerance)


def test_a_parameter_that_leaves_the_program_is_kept():
    flat = [W, draw(3, 6)]
    program = jax.make_jaxpr(lambda w, v, x: (squared(x @ w) + squared(x @ v.T), v.T))(*flat, X[0])
    found = find_uses(program, 2)
    assert len(found[0]) == 1 and found[1] is None


def test_gradients_of_inputs_that_are_not_kept_are_not_computed():
    params = [draw(6, 4), draw(4, 3)]
    program, flat = traced(params, X, lambda p, x: squared(x @ p[0] @ p[1]))
    found = find_uses(program, 2)
    reads = [(use, HoldValues()) for i in range(2) for use in found[i]]
    step = jax.make_jaxpr(lambda *args: differentiate(program, reads, [], args))(*flat, X[0])
    shapes = {v.aval.shape for eqn in step.eqns for v in eqn.outvars}
    # There is no product of rows and cotangents, whose result would be as large as a parameter.
    assert not shapes & {w.shape for w in flat}


def test_a_joined_use_needs_known_dimensions():
    program, flat = traced(draw(2, 9), X, lambda w, x: squared(x @ w.reshape(6, 3)))
    (chosen,) = decided(program, flat, "gram")
    tap = tapped_parameter(chosen, flat[0])
    reads = [(use, HoldValues()) for use in tap.uses]
    readings = differentiate(program, reads, [], [*flat, X[0]])[2]
    made = tap.gradients(jax.tree.map(lambda x: x[None], readings))
    with pytest.raises(ValueError, match="overlapping uses must have known dimensions"):
        tap.aligned(made)


@pytest.mark.parametrize("remat", [False, True])
def test_where_layouts_are_set_the_sum_is_the_same(remat, monkeypatch):
    def loss(params, x):
        layer = lambda x, p: (jnp.tanh(x @ p["w"] + p["b"][None, None]), None)  # noqa: E731
        return jnp.sum(lax.scan(jax.checkpoint(layer) if remat else layer, x, params)[0] ** 2)

    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(3, 8, 8)), jnp.float32), "b": jnp.zeros((3, 8))}
    x = jnp.asarray(rng.normal(size=(4, 5, 8)), jnp.float32)

    def lowered():
        function = bevel.clipped_grad(loss, l2_clip_norm=1.0, norms="gram")
        return jax.jit(function, compiler_options=QUICK).lower(params, x)

    plain = lowered().compile()(params, x)
    monkeypatch.setattr(taps, "sets_layouts", lambda: True)
    with_layouts = lowered()
    assert "LayoutConstraint" in with_layouts.as_text()
    assert_close(with_layouts.compile()(params, x), plain, 1e-6)
