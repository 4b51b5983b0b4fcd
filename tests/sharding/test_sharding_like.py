"""A result takes the place of its parameter, although only the compiler knows that place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from bevel.sharding.sharding_like import with_sharding_like

X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@jax.jit
def place(x, like):
    return with_sharding_like(2 * x, like, known=None, mesh=None)


@pytest.mark.parametrize(
    "spec",
    [
        P("data"),
        P(None, "model"),
        P("data", "model"),
        P("model", "data"),
        P(("data", "model")),
        P(),
    ],
)
def test_the_result_lies_where_the_other_does(mesh, spec):
    sharding = NamedSharding(mesh, spec)
    everywhere = jax.device_put(X, NamedSharding(mesh, P()))
    got = place(everywhere, jax.device_put(X, sharding))
    assert got.sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_array_equal(got, 2 * X)


@pytest.mark.parametrize("spec", [P("data", "model"), P(("model", "data")), P()])
def test_a_place_that_is_known_is_asked_for(mesh, spec):
    sharding = NamedSharding(mesh, spec)
    everywhere = jax.device_put(X, NamedSharding(mesh, P()))
    got = jax.jit(lambda x: with_sharding_like(2 * x, x, known=sharding, mesh=None))(everywhere)
    assert got.sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_array_equal(got, 2 * X)


def test_values_and_dtype_are_those_of_the_result(mesh):
    like = jax.device_put(jnp.full((8, 8), jnp.nan, jnp.bfloat16), NamedSharding(mesh, P("data")))
    got = place(jax.device_put(X, NamedSharding(mesh, P())), like)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, 2 * X)


def test_whole_numbers_are_placed_next_to_floats(mesh):
    like = jax.device_put(X, NamedSharding(mesh, P("data")))
    got = place(jax.device_put(X.astype(np.int32), NamedSharding(mesh, P())), like)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, 2 * X.astype(np.int32))


def test_scalars_are_left_alone():
    x = jnp.array(3.0)
    assert with_sharding_like(x, jnp.array(1.0), None, None) is x


def test_arrays_without_entries_are_placed():
    got = place(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert got.shape == (0, 3)
