"""Two arrays in one sharding group get one sharding, and the values do not change."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bevel.sharding.sharding_group import sharded_alike


def placed(*shape):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))


def test_an_array_gets_the_sharding_of_another():
    like = placed(16, 8)

    def product(like):
        return sharded_alike(jnp.ones((16, 4)) @ jnp.ones((4, 8)), like, 0)

    result = jax.jit(product)(like)
    assert result.sharding.is_equivalent_to(like.sharding, 2)
    np.testing.assert_array_equal(result, np.full((16, 8), 4.0))


def test_values_and_derivatives_are_those_of_the_array():
    x, like = placed(8, 3), placed(8, 3)

    def total(x):
        return jnp.sum(jax.vmap(lambda a, b: sharded_alike(a, b, 1))(x, like) ** 2)

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(x), 2 * x)
    _, tangent = jax.jvp(lambda x: sharded_alike(x, like, 2), (x,), (2 * x,))
    np.testing.assert_array_equal(tangent, 2 * x)
    np.testing.assert_array_equal(sharded_alike(x, like, 3), x)
    unbatched = jax.vmap(lambda a: sharded_alike(a, jnp.ones(3), 4))(x)
    np.testing.assert_array_equal(unbatched, x)
