"""Buffered Toeplitz matrices one step at a time (JAX): as many buffers as there are decays."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix, buffers_like, widened


@dataclasses.dataclass(frozen=True)
class StreamingMatrixBuilder:
    """Makes streaming matrices of C and C^-1 from decays and scales.

    Buffer j holds the sum of past values, each decayed by `buf_decay[j]` per step; C adds the
    buffers, weighted by `output_scale`, to the value that comes in. C^-1 subtracts them and keeps
    what goes out: it needs no other decays. Decays are used in the dtype of the stream, float32
    as a rule; `optimize` returns decays that float32 holds exactly.
    """

    buf_decay: Any
    output_scale: Any

    def __post_init__(self) -> None:
        shapes = np.shape(self.buf_decay), np.shape(self.output_scale)
        if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
            raise FixArgumentsError(
                f"buf_decay has shape {shapes[0]}, output_scale {shapes[1]}: write two lists, one "
                "number for each buffer."
            )

    @property
    def dtype(self) -> np.dtype:
        """That of the decays."""
        return np.dtype(self.buf_decay.dtype)

    def build(self) -> StreamingMatrix:
        """C."""

        def multiply_next(x: jax.Array, buffers: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = widened(x)
            return x + self.weighted_sum(buffers), self.decayed(buffers, x)

        return StreamingMatrix.from_array_implementation(self.init, multiply_next)

    def build_inverse(self) -> StreamingMatrix:
        """C^-1."""

        def multiply_next(x: jax.Array, buffers: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = widened(x) - self.weighted_sum(buffers)
            return y, self.decayed(buffers, y)

        return StreamingMatrix.from_array_implementation(self.init, multiply_next)

    def init(self, x: Any) -> jax.Array:
        return buffers_like(x, np.shape(self.buf_decay)[0])

    def weighted_sum(self, buffers: jax.Array) -> jax.Array:
        return jnp.sum(_along_buffers(self.output_scale, buffers) * buffers, axis=0)

    def decayed(self, buffers: jax.Array, x: jax.Array) -> jax.Array:
        return _along_buffers(self.buf_decay, buffers) * buffers + x[None]


def _along_buffers(values: Any, buffers: jax.Array) -> jax.Array:
    """One value for each buffer, in shape and dtype to multiply them."""
    return jnp.asarray(values, buffers.dtype).reshape(-1, *(1,) * (buffers.ndim - 1))
