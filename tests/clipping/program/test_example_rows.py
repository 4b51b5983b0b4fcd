"""Values that are tied to their examples do not change, and neither do their cotangents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.clipping.program.example_rows import ExampleRows
from bevel.sharding.axes import MeshLayout

SPLIT = MeshLayout(spread=True)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, jnp.complex64])
def test_values_and_cotangents_are_unchanged(dtype):
    batch = [jnp.arange(12).reshape(4, 3).astype(dtype), jnp.ones((4, 2))]

    def one(leaves, x):
        rows = ExampleRows.of(leaves, SPLIT)
        assert rows.number.shape == ()
        return jnp.sum(rows.tied(x) ** 2)

    x = jnp.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(jax.vmap(one)(batch, x), jnp.sum(x**2, axis=1))
    np.testing.assert_array_equal(jax.vmap(jax.grad(one, argnums=1))(batch, x), 2 * x)
    numbers = jax.vmap(lambda leaves: ExampleRows.of(leaves, SPLIT).number)(batch)
    np.testing.assert_array_equal(numbers, [0.0, 3.0, 6.0, 9.0])
    np.testing.assert_array_equal(ExampleRows.numbers(batch, SPLIT)[0], numbers)


def test_a_value_that_all_examples_share_is_not_tied():
    def one(leaf):
        return ExampleRows.of([leaf], SPLIT).tied(jnp.ones(3))

    program = jax.make_jaxpr(jax.vmap(one))(jnp.ones((4, 2)))
    assert "sharding_group" not in str(program)
    tied = jax.make_jaxpr(jax.vmap(lambda x: ExampleRows.of([x], SPLIT).tied(2 * x)))
    assert "sharding_group" in str(tied(jnp.ones((4, 2))))


def test_integers_are_not_tied():
    rows = ExampleRows.of([jnp.ones(2)], SPLIT)
    tokens = jnp.arange(3)
    assert rows.tied(tokens) is tokens


def test_nothing_is_tied_without_a_mesh_or_numbers():
    assert ExampleRows.of([jnp.ones(2)], MeshLayout()) is None
    assert ExampleRows.of([jnp.ones(2, bool), jnp.ones((0,))], SPLIT) is None
    assert ExampleRows.numbers([jax.random.split(jax.random.key(0), 2)], SPLIT) == []
