"""Give an array the place of another, where only the compiler knows that place."""

import jax
import jax.numpy as jnp


def placed_like(x: jax.Array, like: jax.Array) -> jax.Array:
    """`x`, sharded as the compiler shards `like` (of the same shape).

    Under `jit` on Auto axes the sharding of an argument cannot be read. But an elementwise
    operation shares one sharding between its operands, so `x` is selected against `like`, under a
    condition that is always true and that the compiler may not look into.
    """
    if len(jax.devices()) == 1 or x.ndim == 0:
        return x
    always = jax.lax.broadcast(jax.lax.optimization_barrier(jnp.array(True)), x.shape)
    return jax.lax.select(always, x, like.astype(x.dtype))
