"""Where noise and its buffers lie: like the gradient, or flat over all devices."""

import enum
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.sharding import types

# A flat leaf is padded to a multiple of this, whatever the mesh, so that a state that was saved on
# one mesh fits another.
PADDING = 1024


class SupportedStrategies(enum.Enum):
    """How noise and its buffers are laid out. The noise is the same in either layout.

    DEFAULT: shaped and sharded like the gradient. Nothing is communicated.
    ZERO: each leaf flat, padded and split over all axes of the mesh. Buffers of replicated leaves
      then take 1 / devices of the memory, and their noise is drawn once; adding it costs one
      all-gather of the gradient's size.
    """

    DEFAULT = "default"
    ZERO = "zero"


def flat_like(leaf: jax.Array, dtype: Any) -> jax.Array:
    """A flat array for the elements of `leaf` and padding, split over all axes of its mesh."""
    if types.manual_axes():
        raise FixArgumentsError(
            "SupportedStrategies.ZERO splits noise over the whole mesh, and a shard_map has cut "
            "the gradient already: use it outside, or DEFAULT inside."
        )
    mesh = _mesh_of(leaf)
    multiple = PADDING if mesh is None else math.lcm(PADDING, math.prod(mesh.shape.values()))
    flat = jnp.zeros(-(-leaf.size // multiple) * multiple, dtype)
    return flat if mesh is None else _on_mesh(flat, mesh, PartitionSpec(mesh.axis_names))


def _mesh_of(leaf: jax.Array) -> Mesh | AbstractMesh | None:
    """The mesh that an array lies on, or else that of the context."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(leaf, jax.core.Tracer) and isinstance(sharding, NamedSharding):
        return sharding.mesh
    typed = getattr(jax.typeof(leaf), "sharding", None)
    for mesh in (getattr(typed, "mesh", None), jax.sharding.get_abstract_mesh()):
        if mesh is not None and not mesh.empty:
            return mesh
    return None


def _on_mesh(x: jax.Array, mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> jax.Array:
    """`x`, split over the axes of a mesh."""
    kinds = set(mesh.axis_types)
    if kinds == {AxisType.Explicit}:
        return jax.sharding.reshard(x, NamedSharding(mesh, spec))
    if kinds == {AxisType.Auto}:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    raise FixArgumentsError(
        f"SupportedStrategies.ZERO needs a mesh whose axes are all Auto or all Explicit, found "
        f"{dict(zip(mesh.axis_names, mesh.axis_types, strict=True))}: use DEFAULT."
    )


def unflattened(flat: jax.Array, like: jax.Array) -> jax.Array:
    """The elements of a flat leaf in the shape and place of `like`, without the padding."""
    mesh = _mesh_of(like)
    if mesh is None:
        return flat[: like.size].reshape(like.shape)
    # One all-gather: left to itself, the compiler moves parts of the padded array about.
    whole = _on_mesh(flat, mesh, PartitionSpec())
    whole = _on_mesh(whole[: like.size].reshape(like.shape), mesh, PartitionSpec())
    sharding = types.explicit_sharding(like)
    return whole if sharding is None else jax.sharding.reshard(whole, sharding)
