"""Parameters that Flax keeps in a box with the names of their axes; Flax itself is not needed.

Linen: `nn.Partitioned` and `nn.LogicallyPartitioned`, with `names`. NNX: a `Variable`, with
metadata. Both are nodes of a tree with one leaf.
"""

from typing import Any

import jax

# What NNX has called the metadata that names the axes, newest first.
NNX_NAMES = ("out_sharding", "sharding_names", "sharding")


def is_box(x: Any) -> bool:
    """Whether `x` is a box around one array."""
    linen = hasattr(x, "names") and hasattr(x, "replace_boxed")
    nnx = hasattr(x, "get_metadata") and hasattr(x, "set_metadata")
    return (linen or nnx) and len(jax.tree.leaves(x)) == 1


def unboxed(x: Any) -> Any:
    return jax.tree.leaves(x)[0] if is_box(x) else x


def boxed_like(x: Any, value: Any) -> Any:
    """`value`, in the box of `x` if that has one."""
    return jax.tree.unflatten(jax.tree.structure(x), [value]) if is_box(x) else value


def axis_names(x: Any) -> tuple[Any, ...] | None:
    """The names of the axes that a box carries, one for each dimension, or None."""
    if not is_box(x):
        return None
    if hasattr(x, "names"):
        return tuple(x.names)
    metadata = x.get_metadata()
    names = next((metadata[key] for key in NNX_NAMES if metadata.get(key) is not None), None)
    return None if names is None else tuple(names)
