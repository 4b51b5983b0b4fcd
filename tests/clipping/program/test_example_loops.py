"""`explain` names what runs one example at a time, from the program that the engine runs."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call

import bevel

W, X = jnp.ones((3, 2)), jnp.ones((4, 3))


def doubled(x):
    return linear_call(lambda _, y: 2 * y, lambda _, g: 2 * g, (), x)  # the user's line


def on_host(x, method=None):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(np.sin, out, x, vmap_method=method)


def in_a_rule(x):
    function = jax.custom_vjp(lambda y: y)
    function.defvjp(lambda y: (y, None), lambda _, g: (doubled(g),))
    return function(x)


def in_a_scan(x):
    def step(h, _):
        return lax.cond(jnp.sum(h) > 0, doubled, jnp.sin, h), None

    return lax.scan(jax.checkpoint(step), x, length=2)[0]


def ragged(x):
    return lax.ragged_dot(x, jnp.ones((2, 2, 2)), jnp.array([0, 1]))


LOSSES = {
    "plain": (doubled, ["linear_call"]),
    "scan, remat and cond": (in_a_scan, ["linear_call"]),
    "backward rule": (in_a_rule, ["linear_call"]),
    "twice": (lambda x: doubled(doubled(x)), ["linear_call"]),
    "callback": (lambda x: x + on_host(lax.stop_gradient(x)), ["pure_callback"]),
    "expand_dims": (
        lambda x: x + on_host(lax.stop_gradient(x), "expand_dims"),
        ["pure_callback"],
    ),
    "sequential_vmap": (
        jax.custom_batching.sequential_vmap(lambda x: jnp.sin(2 * x)),
        ["sequential_vmap"],
    ),
    "ragged_dot": (ragged, ["ragged_dot_general"]),
    "nothing": (jnp.sin, []),
    "of parameters alone": (lambda x: x + jnp.sum(doubled(W)), []),
}


def explained(operation, **options):
    def loss(w, x):
        if operation is LOSSES["sequential_vmap"][0]:
            return jnp.sum((operation(x) @ w) ** 2)
        return jnp.sum(operation(x @ w) ** 2)

    return bevel.explain(bevel.clipped_grad(loss, l2_clip_norm=1.0, **options), W, X)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loop_is_named_once(name):
    operation, names = LOSSES[name]
    explanation = explained(operation)
    assert [loop.operation for loop in explanation.loops] == names
    assert str(explanation).count("runs one example at a time") == len(names)


@pytest.mark.parametrize("engine", ["auto", "vmap"])
@pytest.mark.parametrize("operation", [doubled, in_a_scan], ids=["plain", "scan"])
def test_the_note_has_the_line_of_the_user(operation, engine):
    lines, start = inspect.getsourcelines(doubled)
    number = next(start + i for i, line in enumerate(lines) if "the user's line" in line)
    note = f"test_example_loops.py:{number} runs one example at a time"
    printed = str(explained(operation, engine=engine)).splitlines()
    assert [line.endswith(note) for line in printed if line.startswith("linear_call at ")] == [True]
