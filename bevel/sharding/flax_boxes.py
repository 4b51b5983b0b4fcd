"""Read the axis names that Flax stores in a box around a parameter, without importing Flax.

In Linen the boxes are `nn.Partitioned` and `nn.LogicallyPartitioned`, which have `names`. In NNX a
box is a `Variable` with metadata. Both are pytree nodes with one leaf.
"""

from typing import Any

import jax

# The metadata key for axis names in different versions of NNX, newest first.
NNX_NAMES = ("out_sharding", "sharding_names", "sharding")


def is_box(x: Any) -> bool:
    """Whether `x` is a box around one array."""
    linen = hasattr(x, "names") and hasattr(x, "replace_boxed")
    nnx = hasattr(x, "get_metadata") and hasattr(x, "set_metadata")
    return (linen or nnx) and len(jax.tree.leaves(x)) == 1


def unboxed(x: Any) -> Any:
    """The array in a box; anything else is returned unchanged."""
    return jax.tree.leaves(x)[0] if is_box(x) else x


def boxed_like(x: Any, value: Any) -> Any:
    """`value` in a copy of the box `x`, or just `value` if `x` is not a box."""
    return jax.tree.unflatten(jax.tree.structure(x), [value]) if is_box(x) else value


def axis_names(x: Any) -> tuple[Any, ...] | None:
    """The axis names that a box stores, one for each dimension, or None."""
    if not is_box(x):
        return None
    if hasattr(x, "names"):
        return tuple(x.names)
    metadata = x.get_metadata()
    names = next((metadata[key] for key in NNX_NAMES if metadata.get(key) is not None), None)
    return None if names is None else tuple(names)
