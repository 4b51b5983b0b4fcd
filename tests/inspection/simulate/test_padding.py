"""Batches that the mesh does not divide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from bevel.errors import FixArgumentsError
from bevel.sharding.simulate import simulate_shard_map

ROWS = np.arange(26, dtype=np.float32).reshape(13, 2)


def padded(body, **options):
    options = {"mesh": {"data": 8}, "in_specs": P("data"), "out_specs": P("data")} | options
    return simulate_shard_map(body, pad=True, **options)


def test_rows_are_padded_and_the_padding_removed():
    seen = []

    def body(x):
        seen.append(x.shape)
        return jnp.sin(x), x[:, 0]

    found = padded(body)(ROWS)
    assert set(seen) == {(2, 2)}
    np.testing.assert_allclose(found[0], np.sin(ROWS), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[1], ROWS[:, 0])


def test_a_vector_of_ones_marks_the_real_rows():
    def mean(x, real):
        return lax.psum(jnp.sum(x * real[:, None], 0), "data") / lax.psum(jnp.sum(real), "data")

    found = padded(mean, out_specs=P())(ROWS, np.ones(13, np.float32))
    np.testing.assert_allclose(found, ROWS.mean(0), rtol=1e-6)


def test_without_it_jax_raises():
    with pytest.raises(ValueError, match="not evenly divisible"):
        simulate_shard_map(lambda x: x, mesh={"data": 8}, in_specs=P("data"), out_specs=P("data"))(
            ROWS
        )


def test_what_divides_is_left_alone():
    np.testing.assert_array_equal(padded(lambda x: x[::2])(np.ones((16, 2))), np.ones((8, 2)))


def test_several_dimensions_and_axes():
    weights = np.arange(10, dtype=np.float32).reshape(2, 5)
    options = {
        "mesh": {"data": 4, "model": 2},
        "in_specs": (P("data"), P(None, "model")),
        "out_specs": P("data", "model"),
    }
    found = padded(lambda x, w: x @ w, **options)(ROWS, weights)
    np.testing.assert_allclose(found, ROWS @ weights)


def test_one_row_for_each_device_is_kept():
    found = padded(lambda x: jnp.sum(x)[None])(ROWS)
    assert found.shape == (8,)
    np.testing.assert_allclose(jnp.sum(found), ROWS.sum())


def test_rows_of_another_number_are_refused():
    with pytest.raises(FixArgumentsError, match="padding cannot be removed"):
        padded(lambda x: x.reshape(-1))(ROWS)


def test_two_lengths_padded_to_one_are_refused():
    with pytest.raises(FixArgumentsError, match="both padded to 16"):
        padded(lambda x, y: x)(ROWS, np.ones((14, 2)))


def test_the_gradient_is_that_of_the_rows():
    step = padded(lambda x: jnp.sin(x))
    found = jax.grad(lambda x: jnp.sum(step(x) ** 2))(ROWS)
    np.testing.assert_allclose(found, np.sin(2 * ROWS), rtol=1e-4, atol=1e-5)


def test_trees_and_static_arguments():
    def body(tree, power):
        return {"a": tree["a"] ** power, "b": tree["b"]}

    options = {"in_specs": (P("data"), None), "out_specs": P("data")}
    found = padded(body, **options)({"a": ROWS, "b": ROWS[:, 0]}, 2)
    np.testing.assert_allclose(found["a"], ROWS**2)
    np.testing.assert_array_equal(found["b"], ROWS[:, 0])
