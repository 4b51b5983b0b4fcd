"""Programs evaluated equation by equation, or with nested calls inlined, give the same results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.clipping.program.equations import (
    bind,
    body_of_call,
    evaluate,
    inline_calls,
    needed_inputs,
)
from bevel.sharding.axes import constraints

X = np.arange(8, dtype=np.float32).reshape(4, 2) / 8


def names(program):
    return [eqn.primitive.name for eqn in program.jaxpr.eqns]


def layer(x):
    return jnp.tanh(x) * 2


def nested(x):
    inner = jax.jit(lambda y: (jax.jit(layer)(y), jnp.sum(y)))
    h, total = inner(jnp.sin(x))
    return h + total, inner(h)[0], 3.0


def run(program, *args):
    return jax.core.eval_jaxpr(program.jaxpr, program.consts, *args)


def test_opened_calls_give_equal_results():
    program = jax.make_jaxpr(nested)(X)
    assert "jit" in names(program)
    opened = inline_calls(program, [X])
    assert "jit" not in names(opened)
    assert opened.in_avals == program.in_avals
    assert [a.shape for a in opened.out_avals] == [a.shape for a in program.out_avals]
    for a, b in zip(run(opened, X), run(program, X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_program_without_calls_is_left_as_it_is():
    program = jax.make_jaxpr(lambda x: jax.lax.tanh(x))(X)
    assert inline_calls(program, [X]) is program


def test_constants_of_a_call_are_kept():
    table = jnp.asarray(X)
    program = jax.make_jaxpr(lambda x: jax.jit(lambda y: y + table)(x))(X)
    np.testing.assert_allclose(run(inline_calls(program, [X]), X)[0], 2 * X)


def test_one_jit_called_twice_is_opened_twice():
    twice = jax.jit(layer)
    program = inline_calls(jax.make_jaxpr(lambda x: twice(twice(x)))(X), [X])
    assert names(program).count("tanh") == 2
    np.testing.assert_allclose(run(program, X)[0], layer(layer(X)), rtol=1e-6)


def test_loops_stay_and_effects_are_kept():
    def looping(x):
        jax.debug.callback(lambda _: None, x[0, 0])
        return jax.lax.scan(lambda c, row: (c + row, jax.jit(layer)(row)), jnp.zeros(2), x)

    program = jax.make_jaxpr(jax.jit(looping))(X)
    opened = inline_calls(program, [X])
    assert "scan" in names(opened) and "jit" not in names(opened)
    assert opened.effects == program.effects


def test_shardings_of_a_call_become_constraints():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))
    inner = jax.jit(lambda a, b: layer(a) + b, in_shardings=(rows, None), out_shardings=columns)
    program = jax.make_jaxpr(lambda x: inner(x, x))(X)
    opened = inline_calls(program, [X])
    assert "jit" not in names(opened)
    assert constraints(opened.jaxpr) == [(rows, (4, 2)), (columns, (4, 2))]


def test_every_equation_is_handed_over_in_order():
    program = jax.make_jaxpr(lambda x: jax.lax.sin(x) + 1.0)(X)
    seen = []

    def handle(eqn, inputs):
        seen.append(eqn.primitive.name)
        return bind(eqn, inputs)

    (got,) = evaluate(program.jaxpr, program.consts, [X], handle)
    assert seen == ["sin", "add"]
    np.testing.assert_allclose(got, np.sin(X) + 1, rtol=1e-6)


def test_inputs_and_literals_may_be_outputs():
    program = jax.make_jaxpr(lambda x: (x, 2.0, x))(X)
    got = evaluate(program.jaxpr, program.consts, [X], bind)
    assert got[0] is X and got[1] == 2.0 and got[2] is X


def test_a_parameter_of_an_equation_can_be_changed():
    program = jax.make_jaxpr(lambda x: jnp.transpose(x))(X)
    (eqn,) = program.jaxpr.eqns
    (got,) = bind(eqn, [X], permutation=(0, 1))
    np.testing.assert_array_equal(got, X)


def test_equations_with_several_results_give_all_of_them():
    program = jax.make_jaxpr(lambda x: jax.lax.top_k(x, 1))(X)
    (eqn,) = program.jaxpr.eqns
    assert [x.shape for x in bind(eqn, [X])] == [(4, 1), (4, 1)]


@pytest.mark.parametrize(
    "wrap, opens", [(jax.jit, True), (jax.checkpoint, False), (jax.vmap, False)]
)
def test_only_calls_have_a_body_to_open(wrap, opens):
    program = jax.make_jaxpr(lambda x: wrap(layer)(x))(X)
    bodies = [body_of_call(eqn) for eqn in program.jaxpr.eqns]
    assert any(body is not None for body in bodies) == opens


@pytest.mark.parametrize(
    "call", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"]
)
def test_an_output_needs_only_what_it_is_computed_from(call):
    """Also through a call, all of whose inputs would otherwise seem to be needed."""
    program = jax.make_jaxpr(call(lambda a, b, c: (jnp.sin(a) + b, c * 2, 1.0)))(X, X, X).jaxpr
    needed = [needed_inputs(program, [result]) for result in program.outvars]
    assert [[v in own for v in program.invars] for own in needed] == [
        [True, True, False],
        [False, False, True],
        [False, False, False],
    ]
