"""Give an array the sharding of another, even where only the compiler knows that sharding."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding

from bevel.sharding.types import explicit_sharding


def with_sharding_like(
    x: jax.Array,
    like: jax.Array,
    known: NamedSharding | None = None,
    mesh: AbstractMesh | None = None,
) -> jax.Array:
    """`x` with the sharding of `like`, an array of the same shape.

    If that sharding is `known`, it becomes a constraint. On Explicit axes, the type of `like` has
    it. Under `jit` on Auto axes the sharding of an argument cannot be read. The compiler gives the
    operands of an elementwise operation the same sharding, so this selects between `x` and `like`,
    with a condition that is always true but hidden from the compiler.
    """
    if len(jax.devices()) == 1 or x.ndim == 0:
        return x
    if known is not None:
        spec = known.spec if mesh is not None else known
        return jax.lax.with_sharding_constraint(x, spec)
    typed = explicit_sharding(like)
    if typed is None:
        return _selected(x, like)
    # The selection stays: it makes `like` an input of the program, which then runs on its mesh.
    always = jax.lax.optimization_barrier(jnp.array(True))
    return jax.lax.select(always, jax.sharding.reshard(x, typed), like.astype(x.dtype))


@jax.jit  # traced once for all arrays of one shape
def _selected(x: jax.Array, like: jax.Array) -> jax.Array:
    always = jax.lax.broadcast(jax.lax.optimization_barrier(jnp.array(True)), x.shape)
    return jax.lax.select(always, x, like.astype(x.dtype))
