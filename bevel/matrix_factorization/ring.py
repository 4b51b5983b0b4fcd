"""The last few values of a stream, in a ring (JAX).

A step writes one slot and reads all, so a donated ring is never copied; shifting the values would
write every slot again.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bevel.matrix_factorization.streaming_matrix import StreamingMatrix, buffers_like, widened

# (step, dtype) -> weights of the values 0, 1, ... steps ago, the newest first.
WeightsAt = Callable[[jax.Array, Any], jax.Array]


def banded_product(weights_at: WeightsAt, length: int) -> StreamingMatrix:
    """y[t] = w[0] x[t] + w[1] x[t-1] + ..., from the last `length` values of x."""

    def multiply_next(x: jax.Array, state: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
        x = widened(x)
        weights = weights_at(state["step"], x.dtype)
        return weights[0] * x + weighted_sum(weights[1:], state), pushed(x, state)

    return StreamingMatrix.from_array_implementation(lambda x: empty(x, length), multiply_next)


def banded_inverse(weights_at: WeightsAt, length: int) -> StreamingMatrix:
    """The inverse: y[t] with x[t] = w[0] y[t] + w[1] y[t-1] + ..., from the last values of y."""

    def multiply_next(x: jax.Array, state: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
        x = widened(x)
        weights = weights_at(state["step"], x.dtype)
        y = (x - weighted_sum(weights[1:], state)) / weights[0]
        return y, pushed(y, state)

    return StreamingMatrix.from_array_implementation(lambda x: empty(x, length), multiply_next)


def empty(x: Any, length: int) -> dict[str, jax.Array]:
    """A ring of zeros, and the step that comes next."""
    return {"ring": buffers_like(x, length), "step": jnp.zeros((), jnp.int32)}


def pushed(x: jax.Array, state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The ring with its oldest value replaced by x."""
    ring, step = state["ring"], state["step"]
    if ring.shape[0]:
        ring = jax.lax.dynamic_update_index_in_dim(ring, x, step % ring.shape[0], 0)
    return {"ring": ring, "step": step + 1}


def weighted_sum(weights: jax.Array, state: dict[str, jax.Array]) -> jax.Array:
    """weights[0] x[t-1] + weights[1] x[t-2] + ..., in the ring's precision: no TF32."""
    ring, step = state["ring"], state["step"]
    length = ring.shape[0]
    slots = jnp.arange(length, dtype=jnp.int32)
    ago = (step - 1 - slots) % jnp.int32(max(length, 1))  # slot s holds the value of ago + 1 steps
    by_slot = weights[ago].reshape(-1, *(1,) * (ring.ndim - 1))
    return jnp.sum(by_slot * ring, axis=0)
