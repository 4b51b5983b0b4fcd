import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import GRID, SHARDED_DATA_PARALLEL, TENSOR_PARALLEL, on, two_layers

from bevel.inspection.checks.constraints import ConstraintCost, costly_constraints, drop_constraints
from bevel.inspection.compiled_step import Limits, compile_step


def step_with(*specs):
    """A step whose hidden layer is constrained, on one line after the other."""

    def loss(params, x):
        hidden = jnp.tanh(x @ params["up"])
        if specs:
            hidden = jax.lax.with_sharding_constraint(hidden, NamedSharding(GRID, specs[0]))
        if len(specs) > 1:
            hidden = jax.lax.with_sharding_constraint(hidden, NamedSharding(GRID, specs[1]))
        return jnp.mean((hidden @ params["down"]) ** 2)

    return jax.grad(loss), loss.__code__.co_firstlineno


def found(step, layout=TENSOR_PARALLEL):
    args = two_layers(GRID, *layout), on(GRID, (512, 32), "data")
    return list(costly_constraints(compile_step(step, args, {}, None, 0, Limits())))


@pytest.mark.parametrize(
    "specs", [(), (P("data"),), (P("data", "model"),), (P("data", "model"),) * 2]
)
def test_constraints_that_cost_nothing(specs):
    step, _ = step_with(*specs)
    layout = SHARDED_DATA_PARALLEL if specs == (P("data"),) else TENSOR_PARALLEL
    assert found(step, layout) == []


def test_a_constraint_that_gathers_the_batch():
    step, line = step_with(P())
    (warning,) = found(step)
    assert warning.line.line == line + 3 and warning.bytes > 0
    assert "makes the step more expensive" in warning.what and "leave it out" in warning.fix


def test_the_costly_one_of_two_is_blamed():
    step, line = step_with(P("data", "model"), P(None, ("data", "model")))
    (warning,) = found(step)
    assert warning.line.line == line + 5


def test_constraints_on_results_are_left_alone():
    def step(params, x):
        return jax.lax.with_sharding_constraint(params["up"] * jnp.sum(x), on(GRID, ()).sharding)

    assert found(step) == []


def test_dropped_constraints_change_no_number():
    def function(x):
        def body(x, _):
            return jax.lax.with_sharding_constraint(jnp.sin(x), on(GRID, ()).sharding), x

        x = jax.lax.with_sharding_constraint(x, on(GRID, ()).sharding)
        x, _ = jax.lax.scan(body, x, length=3)
        return jax.lax.cond(jnp.sum(x) > 0, lambda: body(x, 0)[0], lambda: x)

    x = jnp.arange(8.0)
    program = jax.make_jaxpr(function)(x)
    bare = drop_constraints(program.jaxpr, lambda eqn: True)
    assert "sharding_constraint" in str(program) and "sharding_constraint" not in str(bare)
    (result,) = jax.core.eval_jaxpr(bare, program.consts, x)
    assert (result == function(x)).all()


def test_more_is_a_tenth_and_a_floor():
    a, b = ConstraintCost(200.0, 1.0, 5.0), ConstraintCost(100.0, 1.0, 5.0)
    assert set(a.more_than(b, 10)) == {"sent"} and not a.more_than(b, 100)
    assert not b.more_than(a, 0)
