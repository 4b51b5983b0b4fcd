"""Give an array the place of another, where only the compiler knows that place."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding


def with_sharding_like(
    x: jax.Array,
    like: jax.Array,
    known: NamedSharding | None = None,
    mesh: AbstractMesh | None = None,
) -> jax.Array:
    """`x`, sharded as `like` is (of the same shape): as `known`, or else as the compiler does.

    Under `jit` on Auto axes the sharding of an argument cannot be read. But an elementwise
    operation shares one sharding between its operands, so `x` is selected against `like`, under a
    condition that is always true and that the compiler may not look into.
    """
    if len(jax.devices()) == 1 or x.ndim == 0:
        return x
    if known is not None:
        spec = known.spec if mesh is not None else known
        return jax.lax.with_sharding_constraint(x, spec)
    always = jax.lax.broadcast(jax.lax.optimization_barrier(jnp.array(True)), x.shape)
    return jax.lax.select(always, x, like.astype(x.dtype))
