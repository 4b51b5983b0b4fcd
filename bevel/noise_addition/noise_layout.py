"""Layout of noise and its buffers: like the gradient, or flat and split over all devices."""

import enum
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.sharding import types

# A flat leaf is padded to a multiple of this on every mesh, so that a state saved on one mesh fits
# another.
PADDING = 1024


class SupportedStrategies(enum.Enum):
    """The layout of noise and its buffers. Both layouts give the same noise.

    DEFAULT: the shape and sharding of the gradient. Nothing is communicated.
    ZERO: each leaf is flattened, padded and split over all axes of the mesh. The buffers of
      replicated leaves then take 1 / devices of the memory, and their noise is drawn once. Adding
      it costs one all-gather of the gradient's size.
    """

    DEFAULT = "default"
    ZERO = "zero"


def flat_like(leaf: jax.Array, dtype: Any) -> jax.Array:
    """Returns flat zeros for the elements of `leaf` and padding, split over all mesh axes."""
    if types.manual_axes():
        raise FixArgumentsError(
            "SupportedStrategies.ZERO splits noise over the whole mesh, but a shard_map has "
            "already split the gradient. Use ZERO outside of the shard_map, or DEFAULT inside."
        )
    mesh = _mesh_of(leaf)
    multiple = PADDING if mesh is None else math.lcm(PADDING, math.prod(mesh.shape.values()))
    flat = jnp.zeros(-(-leaf.size // multiple) * multiple, dtype)
    return flat if mesh is None else _on_mesh(flat, mesh, PartitionSpec(mesh.axis_names))


def _mesh_of(leaf: jax.Array) -> Mesh | AbstractMesh | None:
    """Returns the mesh of an array, or of the context if the array has none."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(leaf, jax.core.Tracer) and isinstance(sharding, NamedSharding):
        return sharding.mesh
    typed = getattr(jax.typeof(leaf), "sharding", None)
    for mesh in (getattr(typed, "mesh", None), jax.sharding.get_abstract_mesh()):
        if mesh is not None and not mesh.empty:
            return mesh
    return None


def _on_mesh(x: jax.Array, mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> jax.Array:
    """Shards `x` over a mesh."""
    axis_types = set(mesh.axis_types)
    if axis_types == {AxisType.Explicit}:
        return jax.sharding.reshard(x, NamedSharding(mesh, spec))
    if axis_types == {AxisType.Auto}:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    raise FixArgumentsError(
        f"SupportedStrategies.ZERO needs a mesh whose axes are all Auto or all Explicit, found "
        f"{dict(zip(mesh.axis_names, mesh.axis_types, strict=True))}. Use DEFAULT on this mesh."
    )


def unflatten(flat: jax.Array, like: jax.Array) -> jax.Array:
    """Returns the elements of a flat leaf, without padding, shaped and sharded as `like`."""
    mesh = _mesh_of(like)
    if mesh is None:
        return flat[: like.size].reshape(like.shape)
    # Ask for one all-gather: otherwise the compiler exchanges parts of the padded array.
    replicated = _on_mesh(flat, mesh, PartitionSpec())
    replicated = _on_mesh(replicated[: like.size].reshape(like.shape), mesh, PartitionSpec())
    sharding = types.explicit_sharding(like)
    return replicated if sharding is None else jax.sharding.reshard(replicated, sharding)
