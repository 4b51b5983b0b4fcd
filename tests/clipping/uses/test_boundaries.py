"""The remats of a program, their loops, and which of their inputs depend on the example."""

import jax
import jax.numpy as jnp
from jax import lax

from bevel.clipping.uses.boundaries import find_boundaries

W, X = jnp.ones((3, 4, 4)), jnp.ones((2, 4))


def found(function):
    program = jax.make_jaxpr(function)(W, X)
    return find_boundaries(program.jaxpr, [True, False])


def layer(x, w):
    return jnp.tanh(x @ w)


def test_every_remat_of_a_loop_is_found_once():
    boundaries = found(
        lambda w, x: lax.scan(lambda h, v: (jax.checkpoint(layer)(h, v), None), x, w)
    )
    (boundary,) = boundaries
    assert boundary.lengths == (3,) and len(boundary.examples) == 1 and boundary.outputs == (0,)


def test_only_the_outermost_remat_counts():
    outer = jax.checkpoint(lambda x, w: jax.checkpoint(layer)(x, w) * 2.0)
    assert len(found(lambda w, x: outer(outer(x, w[0]), w[1]))) == 2


def test_a_counter_and_casts_of_parameters_do_not_depend_on_the_example():
    def step(state, v):
        h, count = state
        h = jax.checkpoint(lambda h, v, c: layer(h, v) * c)(h, v * 2.0, count)
        return (h, count + 1.0), None

    (boundary,) = found(lambda w, x: lax.scan(step, (x, jnp.float32(0)), w))
    assert len(boundary.eqn.invars) == 3 and len(boundary.examples) == 1


def test_a_carry_that_an_example_enters_later_depends_on_it():
    def step(state, v):
        h, total = state
        h = jax.checkpoint(lambda h, v, t: layer(h, v) + t)(h, v, total)
        return (h, total + jnp.sum(h)), None

    (boundary,) = found(lambda w, x: lax.scan(step, (x, jnp.float32(0)), w))
    assert len(boundary.examples) == 2


def test_remats_in_branches_are_not_entered():
    def branch(w, x):
        return lax.cond(x[0, 0] > 0, jax.checkpoint(layer), lambda x, w: x, x, w[0])

    assert found(branch) == []
