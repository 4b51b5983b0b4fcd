"""Ring buffers with the last few values of a stream (JAX).

A step writes one slot and reads all of them, so a donated ring is updated in place. Shifting the
values instead would rewrite every slot.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bevel.matrix_factorization.streaming_matrix import StreamingMatrix, buffers_like, widened

# (step, dtype) -> weights of the values 0, 1, ... steps ago.
WeightsAt = Callable[[jax.Array, Any], jax.Array]


def banded_product(weights_at: WeightsAt, length: int) -> StreamingMatrix[Any]:
    """The matrix with y[t] = w[0] x[t] + w[1] x[t-1] + ..., from the last `length` values of x."""

    def multiply_next(x: jax.Array, state: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
        x = widened(x)
        weights = weights_at(state["step"], x.dtype)
        return weights[0] * x + weighted_sum(weights[1:], state), push(x, state)

    return StreamingMatrix.from_array_implementation(lambda x: empty(x, length), multiply_next)


def banded_inverse(weights_at: WeightsAt, length: int) -> StreamingMatrix[Any]:
    """The inverse of `banded_product`: solves x[t] = w[0] y[t] + w[1] y[t-1] + ... for y[t]."""

    def multiply_next(x: jax.Array, state: dict[str, jax.Array]) -> tuple[jax.Array, Any]:
        x = widened(x)
        weights = weights_at(state["step"], x.dtype)
        y = (x - weighted_sum(weights[1:], state)) / weights[0]
        return y, push(y, state)

    return StreamingMatrix.from_array_implementation(lambda x: empty(x, length), multiply_next)


def empty(x: Any, length: int) -> dict[str, jax.Array]:
    """A state with a ring of zeros and step 0."""
    return {"ring": buffers_like(x, length), "step": jnp.zeros((), jnp.int32)}


def push(x: jax.Array, state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The next state: x replaces the oldest value of the ring."""
    ring, step = state["ring"], state["step"]
    if ring.shape[0]:
        ring = jax.lax.dynamic_update_index_in_dim(ring, x, step % ring.shape[0], 0)
    return {"ring": ring, "step": step + 1}


def weighted_sum(weights: jax.Array, state: dict[str, jax.Array]) -> jax.Array:
    """weights[0] x[t-1] + weights[1] x[t-2] + ..., in the precision of the ring (never TF32)."""
    ring, step = state["ring"], state["step"]
    length = ring.shape[0]
    slots = jnp.arange(length, dtype=jnp.int32)
    ago = (step - 1 - slots) % jnp.int32(max(length, 1))  # slot s was written ago[s] + 1 steps ago
    by_slot = weights[ago].reshape(-1, *(1,) * (ring.ndim - 1))
    return jnp.sum(by_slot * ring, axis=0)
