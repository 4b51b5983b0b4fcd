"""Streams of BLTs, built from plain NumPy arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz, StreamingMatrixBuilder

DECAY, SCALE = np.array([0.75, 0.5]), np.array([0.25, 0.125])
N = 8


def test_streams():
    builder = StreamingMatrixBuilder(DECAY, SCALE)
    assert builder.dtype == np.float64
    expected = BufferedToeplitz(DECAY, SCALE).materialize(N)
    np.testing.assert_allclose(builder.build().materialize(N), expected, rtol=1e-6)
    inverse = np.asarray(builder.build_inverse().materialize(N), float)
    np.testing.assert_allclose(inverse @ expected, np.eye(N), atol=1e-6)


def test_one_buffer_for_each_decay():
    state = (
        StreamingMatrixBuilder(DECAY, SCALE)
        .build_inverse()
        .init_multiply({"w": jnp.ones((3, 2), jnp.bfloat16), "b": jnp.ones(())})
    )
    assert state["w"].shape == (2, 3, 2) and state["b"].shape == (2,)
    assert state["w"].dtype == jnp.float32


def test_no_buffers_is_the_identity():
    empty = StreamingMatrixBuilder(np.zeros(0), np.zeros(0))
    np.testing.assert_array_equal(empty.build_inverse().materialize(3), np.eye(3))


def test_long_streams_stay_near_the_exact_ones():
    blt = BufferedToeplitz.build(np.float32([0.9999, 0.9]), np.float32([0.05, 0.2]))
    z = np.random.default_rng(0).normal(size=5000)
    with jax.enable_x64(True):
        exact = np.asarray(blt.inverse_as_streaming_matrix() @ z)
    got = blt.inverse_as_streaming_matrix() @ z.astype(np.float32)
    np.testing.assert_allclose(got, exact, atol=2e-5)


def test_bad_shapes():
    for decay, scale in [(DECAY, SCALE[:1]), (DECAY[None], SCALE[None]), (0.5, 0.5)]:
        with pytest.raises(FixArgumentsError, match="one number for each buffer"):
            StreamingMatrixBuilder(decay, scale)
