"""What counts as having no batching rule: what JAX says has none, and can run in a loop."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.custom_derivatives import linear_call

from bevel.clipping.program.missing_rules import has_batching_rule

X = jnp.ones((2, 3))
DOUBLE = functools.partial(linear_call, lambda _, y: 2 * y, lambda _, g: 2 * g, ())
GROUPS = jnp.ones((4, 3, 5)), jnp.array([1, 0, 1, 0])

IN_A_RULE = jax.custom_jvp(lambda x: DOUBLE(x))
IN_A_RULE.defjvp(lambda primals, tangents: (DOUBLE(*primals), DOUBLE(*tangents)))


def equation(function, *args):
    return jax.make_jaxpr(function)(*args).eqns[-1]


MISSING = {
    "linear_call": lambda: equation(DOUBLE, X),
    "composite": lambda: equation(lax.composite(jnp.sin, "tests.sine"), X),
    "ragged_dot": lambda: equation(lax.ragged_dot, X, *GROUPS),
    "gradient of ragged_dot": lambda: equation(
        lambda x: jax.vjp(lambda x: lax.ragged_dot(x, *GROUPS), x)[1](jnp.ones((2, 5))), X
    ),
}
PRESENT = {
    "sin": lambda: equation(jnp.sin, X),
    "jit of what has none": lambda: equation(jax.jit(DOUBLE), X),
    "custom_jvp of what has none": lambda: equation(IN_A_RULE, X),
    "a loop of what has none": lambda: equation(
        lambda x: lax.fori_loop(0, 2, lambda _, x: DOUBLE(x), x), X
    ),
    "shard_map": lambda: equation(
        jax.shard_map(
            DOUBLE,
            mesh=jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)),
            in_specs=jax.P(),
            out_specs=jax.P(),
        ),
        X,
    ),
    "no inputs": lambda: equation(lambda: lax.iota(jnp.int32, 3)),
}


@pytest.mark.parametrize("name", MISSING)
def test_has_no_rule(name):
    assert not has_batching_rule(MISSING[name]())


@pytest.mark.parametrize("name", PRESENT)
def test_has_a_rule_or_needs_none(name):
    assert has_batching_rule(PRESENT[name]())


def test_what_has_no_rule_fails_under_vmap():
    """If JAX adds a rule, the loop is no longer needed."""
    with pytest.raises(NotImplementedError, match="ragged_dot vmap"):
        jax.vmap(lambda x: lax.ragged_dot(x, *GROUPS))(X[None])
    with pytest.raises(NotImplementedError, match="Batching rule for 'linear_call'"):
        jax.vmap(DOUBLE)(X)
