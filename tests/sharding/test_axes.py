"""Which mesh axes carry the batch: from arguments, from constraints, or declared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.errors import FixArgumentsError
from bevel.sharding import axes

X = np.zeros((8, 8), np.float32)
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def mesh_of(kind):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)


def on(spec, kind=AUTO):
    return NamedSharding(mesh_of(kind), spec)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
@pytest.mark.parametrize(
    "spec, found",
    [
        (P("data"), ("data",)),
        (P(("data", "model")), ("data", "model")),
        (P(("model", "data")), ("model", "data")),
        (P(None, "model"), ()),
        (P(), ()),
    ],
)
def test_the_leading_dimension_of_an_argument_says_what_carries_the_batch(spec, found, kind):
    assert axes.axes_of_arguments([X, jax.device_put(X, on(spec, kind))]) == found


def test_arguments_add_up_without_doubles():
    specs = [P("data"), P("model"), P(("data", "model"))]
    assert axes.axes_of_arguments([jax.device_put(X, on(s)) for s in specs]) == ("data", "model")


def test_arguments_that_lie_nowhere_say_nothing():
    assert axes.axes_of_arguments([X, jnp.zeros(3), 1.0]) == ()
    assert axes.axes_of_arguments([]) == ()


def test_traced_arguments_speak_through_their_types():
    def seen(x, found):
        found.append(axes.axes_of_arguments([x]))
        return x

    for kind, expected in ((AUTO, ()), (EXPLICIT, ("data",))):
        found = []
        jax.eval_shape(lambda x, f=found: seen(x, f), jax.device_put(X, on(P("data"), kind)))
        assert found == [expected]
    found = []
    inside = jax.shard_map(
        lambda x: seen(x, found), mesh=mesh_of(AUTO), in_specs=P("data"), out_specs=P("data")
    )
    jax.eval_shape(inside, X)
    assert found == [("data",)]


def constrain(x, *spec):
    return jax.lax.with_sharding_constraint(x, on(P(*spec)))


def columns(x):
    return constrain(x, None, "model")


def rows_and_columns(x):
    return constrain(jnp.tanh(constrain(x, "data", "model")), None, "model")


def flattened(x):
    return constrain(x.reshape(-1), ("data", "model"))


def in_a_scan(x):
    return jax.lax.scan(lambda c, _: (constrain(c, "data"), None), x, length=2)[0]


def in_a_branch(x):
    return jax.lax.cond(x[0, 0] > 0, lambda x: constrain(x, "data"), lambda x: x, x)


def of_a_weight(x):
    return x @ constrain(jnp.ones((8, 8)), "data")


def by_a_nested_jit(x):
    return jax.jit(jnp.tanh, in_shardings=on(P("data")))(x)


def growing(x):
    return sum(constrain(row, "data") for row in x)  # more constraints for a larger batch


@pytest.mark.parametrize(
    "program, found",
    [
        (columns, ()),
        (rows_and_columns, ("data",)),
        (flattened, ("data", "model")),
        (in_a_scan, ("data",)),
        (in_a_branch, ("data",)),
        (of_a_weight, ()),
        (by_a_nested_jit, ("data",)),
        (growing, ()),
    ],
)
def test_constraints_on_dimensions_that_grow_name_the_batch(program, found):
    one, two = (jax.make_jaxpr(program)(np.zeros((n, 8), np.float32)) for n in (8, 16))
    assert axes.axes_of_constraints(one, two) == found


def test_constraints_are_found_with_their_shapes_in_program_order():
    program = jax.make_jaxpr(rows_and_columns)(X)
    found = [(s.spec, shape) for s, shape in axes.constraints(program.jaxpr)]
    assert found == [(P("data", "model"), (8, 8)), (P(None, "model"), (8, 8))]


def test_types_of_outputs_ask_for_something_only_if_they_name_an_axis():
    with jax.set_mesh(mesh_of(EXPLICIT)):
        program = jax.make_jaxpr(lambda x: jnp.broadcast_to(x[None], (2, 8, 8)))(X)
    assert axes.constraints(program.jaxpr) == []


def test_sizes_come_from_shardings_and_from_the_context():
    assert axes.mesh_sizes([], None) == {}
    assert axes.mesh_sizes([on(P())], None) == {"data": 4, "model": 2}
    other = jax.make_mesh((8,), ("rows",), axis_types=(AUTO,))
    with jax.set_mesh(other):
        assert axes.mesh_sizes([on(P())], None) == {"data": 4, "model": 2, "rows": 8}
    assert axes.mesh_sizes([], other.abstract_mesh) == {"rows": 8}


def test_what_is_seen_on_arguments_can_be_a_cache_key():
    placed = jax.device_put(X, on(P("data")))
    seen = axes.ArgumentShardings.on([placed, X], [placed])
    assert seen.batch_axes == ("data",) and seen.params == (on(P("data")), None)
    assert seen == axes.ArgumentShardings.on([placed, X], [placed]) and hash(seen) is not None
    assert seen != axes.ArgumentShardings.on([X, X], [placed])


def test_a_placement_is_known_of_concrete_arrays_only():
    assert axes.placement(X) is None and axes.placement(jnp.zeros(3)) is None
    found = []
    jax.eval_shape(lambda x: found.append(axes.placement(x)), jax.device_put(X, on(P("data"))))
    assert found == [None]


def test_equations_are_found_inside_loops():
    looped = jax.make_jaxpr(lambda x: jax.lax.map(jnp.sin, x))(X).jaxpr
    assert [eqn.primitive.name for eqn in axes.equations_in(looped)] == ["scan", "sin"]
    assert len(list(axes.equations_in(looped, "sin"))) == 1
    assert not list(axes.equations_in(looped, "cos"))


def test_a_declared_axis_must_be_on_the_mesh():
    axes.check_declared(("data",), {"data": 4, "model": 2})
    axes.check_declared((), {})
    axes.check_declared(("anything",), {})  # no mesh is known: nothing to check against
    message = r"batch_axes names 'rows', but the mesh has the axes \('data',\).*leave"
    with pytest.raises(FixArgumentsError, match=message):
        axes.check_declared(("data", "rows"), {"data": 4})
