"""Buffered Toeplitz matrices as streaming matrices, with one buffer per decay (JAX)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import shape_of
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix, buffers_like, widened


@dataclasses.dataclass(frozen=True)
class StreamingMatrixBuilder:
    """Builds streaming matrices for C and C^-1 from decays and scales.

    Buffer j holds the sum of earlier values, each decayed by `buf_decay[j]` per step. C adds the
    buffers, weighted by `output_scale`, to its input and stores inputs. C^-1 subtracts them and
    stores outputs, with the same decays. Decays are used in the dtype of the stream, usually
    float32; `optimize` returns decays that are exact in float32.
    """

    buf_decay: Any
    output_scale: Any

    def __post_init__(self) -> None:
        check_shapes(self.buf_decay, self.output_scale)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the decays."""
        return np.dtype(self.buf_decay.dtype)

    def build(self) -> StreamingMatrix[Any]:
        """C as a streaming matrix."""

        def multiply_next(x: jax.Array, buffers: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = widened(x)
            return x + self.weighted_sum(buffers), self.decayed(buffers, x)

        return StreamingMatrix.from_array_implementation(self.init, multiply_next)

    def build_inverse(self) -> StreamingMatrix[Any]:
        """C^-1 as a streaming matrix."""

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


def check_shapes(buf_decay: Any, output_scale: Any) -> None:
    """Raises unless both are 1-D arrays of the same length."""
    shapes = shape_of(buf_decay, "buf_decay"), shape_of(output_scale, "output_scale")
    if len(shapes[0]) != 1 or shapes[0] != shapes[1]:
        raise FixArgumentsError(
            f"buf_decay has shape {shapes[0]}, output_scale {shapes[1]}: pass two 1-D arrays with "
            "one number for each buffer."
        )


def _along_buffers(values: Any, buffers: jax.Array) -> jax.Array:
    """Reshapes and casts one value per buffer, so that they broadcast against the buffers."""
    return jnp.asarray(values, buffers.dtype).reshape(-1, *(1,) * (buffers.ndim - 1))
