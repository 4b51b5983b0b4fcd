"""Constraints move from the per-example dimension to the example axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bevel
from bevel.clipping.program.batching import over_examples, split_by_inner_shard_maps
from bevel.sharding.axes import MeshLayout, constraints
from bevel.sharding.divisibility import allow_uneven_shardings

FREE = P.UNCONSTRAINED
MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
LAYOUT = MeshLayout(batch_axes=("data",))


def constrain(x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def traced(fun, *shapes) -> ClosedJaxpr:
    with allow_uneven_shardings():
        return jax.make_jaxpr(fun)(*(jnp.zeros(shape) for shape in shapes))


def specs_when_batched(fun, example, layout=LAYOUT):
    """The specs that the batched program requests for 8 examples of one shape."""
    batched = over_examples(traced(fun, example), layout)
    program = jax.make_jaxpr(lambda x: batched((), (), [x], ()))(jnp.zeros((8, *example)))
    return [tuple(sharding.spec) for sharding, _ in constraints(program.jaxpr)]


@pytest.mark.parametrize(
    "asked, shape, moved",
    [
        (("data",), (1, 3), ("data", None, None)),
        (("data", "model"), (1, 2), ("data", None, "model")),
        # Positions of one example, flattened with the batch: divisible, but still moved.
        (("data", None), (4, 3), ("data", None, None)),
        ((("data", "model"), None), (1, 3), ("data", "model", None)),
        # No request for the batch: the compiler decides about the example axis.
        ((None, "model"), (1, 2), (FREE, None, "model")),
        ((FREE, "model"), (1, 2), (FREE, FREE, "model")),
    ],
)
def test_batch_axes_move_to_the_example_axis(asked, shape, moved):
    (got,) = specs_when_batched(lambda x: constrain(x, *asked), shape)
    padded = (*got, *(None,) * (len(shape) + 1 - len(got)))
    assert [e[0] if isinstance(e, tuple) else e for e in padded] == list(moved)


def test_two_batch_axes_move_together():
    layout = MeshLayout(batch_axes=("data", "model"))
    (got,) = specs_when_batched(lambda x: constrain(x, ("data", "model")), (1, 3), layout)
    assert got[0] == ("data", "model")


@pytest.mark.parametrize("wrap", ["scan", "cond", "while", "remat", "custom_vjp", "jit"])
def test_constraints_in_bodies_are_moved(wrap):
    def inner(x):
        return constrain(jnp.tanh(x), "data")

    def loss(x):
        if wrap == "scan":
            return lax.scan(lambda c, _: (inner(c), None), x, None, length=2)[0]
        if wrap == "cond":
            return lax.cond(jnp.sum(x) > 0, inner, lambda x: x, x)
        if wrap == "while":
            return lax.while_loop(lambda c: jnp.sum(c) < 0, inner, x)
        if wrap == "custom_vjp":
            rule = jax.custom_vjp(inner)
            rule.defvjp(lambda x: (inner(x), None), lambda _, g: (constrain(g, "data"),))
            return jax.vjp(rule, x)[1](x)[0]
        return (jax.checkpoint if wrap == "remat" else jax.jit)(inner)(x)

    found = specs_when_batched(loss, (1, 4))
    assert found
    assert all(spec[0] in ("data", ("data",)) for spec in found)


def test_a_constraint_on_a_shared_value_stays():
    weight = jnp.ones((8, 3))
    program = traced(lambda x: x @ constrain(weight, "data"), (1, 8))
    batched = over_examples(program, LAYOUT)
    again = jax.make_jaxpr(lambda x: batched(program.consts, (), [x], ()))(jnp.zeros((8, 1, 8)))
    assert [tuple(s.spec)[:1] for s, _ in constraints(again.jaxpr)] == [("data",)]


def test_examples_enter_a_shard_map_split_over_the_batch_axes():
    def loss(x, manual):
        body = jax.shard_map(
            lambda x: lax.psum(x, "model"),
            mesh=MESH,
            in_specs=P(None, "model"),
            out_specs=P(),
            axis_names=manual,
        )
        return body(x)

    whole = traced(lambda x: loss(x, {"data", "model"}), (1, 2))
    assert split_by_inner_shard_maps(whole, LAYOUT)
    assert not split_by_inner_shard_maps(traced(lambda x: loss(x, {"model"}), (1, 2)), LAYOUT)
    assert not split_by_inner_shard_maps(traced(jnp.sin, (1, 2)), LAYOUT)
    x = jax.device_put(jnp.arange(16.0).reshape(8, 1, 2), NamedSharding(MESH, P("data")))
    result = jax.jit(lambda x: over_examples(whole, LAYOUT)((), (), [x], ()))(x)[0]
    assert result.sharding.spec[0] == "data"
    assert jnp.array_equal(result, jnp.sum(x, axis=2, keepdims=True))


@pytest.mark.parametrize("spec", [P(None, None), P("data", None), P(None, "model")], ids=str)
def test_a_loop_over_examples_may_request_explicit_shardings(spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(2, 6, 4)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(8, 3, 6)), jnp.float32)

    def loss(w, x, **options):
        y = lax.ragged_dot(x.reshape(-1, 6), w, jnp.array([1, 2]), **options)
        return jnp.sum(jnp.tanh(y) ** 2)

    expected = sum(jax.grad(loss)(w, x[i : i + 1]) for i in range(8))
    with jax.set_mesh(mesh):
        weights = P(None, None, "model") if "model" in spec else P()
        w, x = jax.device_put(
            (w, x), (NamedSharding(mesh, weights), NamedSharding(mesh, P("data")))
        )
        fn = bevel.clipped_grad(lambda w, x: loss(w, x, out_sharding=spec), l2_clip_norm=1e6)
        np.testing.assert_allclose(jax.jit(fn)(w, x), expected, rtol=1e-4, atol=1e-5)
