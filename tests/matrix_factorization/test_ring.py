"""Ring buffers, compared with dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.matrix_factorization import ring

N = 11


def weights_of_step(step, length):
    return np.cos(np.arange(length + 1) + 10 * step) + np.eye(length + 1)[0] * 3


@pytest.mark.parametrize("length", [0, 1, 2, 4])
def test_weights_may_change_with_the_step(length):
    table = np.array([weights_of_step(step, length) for step in range(N)])
    dense = np.zeros((N, N))
    for i in range(N):
        for ago in range(min(i, length) + 1):
            dense[i, i - ago] = table[i, ago]

    def weights_at(step, dtype):
        return jnp.asarray(table, dtype)[step]

    with jax.enable_x64(True):
        product = np.asarray(ring.banded_product(weights_at, length).materialize(N))
        inverse = np.asarray(ring.banded_inverse(weights_at, length).materialize(N))
    np.testing.assert_allclose(product, dense, atol=1e-14)
    np.testing.assert_allclose(inverse @ dense, np.eye(N), atol=1e-12)


def test_the_oldest_value_is_replaced():
    state = ring.empty(jnp.zeros(2), 3)
    assert state["ring"].shape == (3, 2)
    for value in (1.0, 2.0, 3.0, 4.0):
        state = ring.push(jnp.full(2, value), state)
    np.testing.assert_array_equal(state["ring"][:, 0], [4, 2, 3])
    weights = jnp.array([100.0, 10.0, 1.0])  # one step ago, two, three
    np.testing.assert_array_equal(ring.weighted_sum(weights, state), [432, 432])


def test_a_donated_ring_is_written_in_place():
    matrix = ring.banded_inverse(lambda _, dtype: jnp.asarray(np.ones(5), dtype), 4)
    state = matrix.init_multiply(jnp.zeros(1000))
    step = jax.jit(matrix.multiply_next, donate_argnums=1)
    compiled = step.lower(jnp.zeros(1000), state).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= 4 * 4000  # all of the ring
    assert memory.temp_size_in_bytes < 3 * 4000  # no second copy
