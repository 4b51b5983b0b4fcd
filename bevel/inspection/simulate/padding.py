"""Pad dimensions that a mesh does not divide, and slice the padding off the outputs."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.sharding.types import spec_axes

Axes = tuple[str, ...]


class Padding:
    """Zero padding for the arguments of one call."""

    def __init__(self, in_specs: Any, sizes: Mapping[str, int]) -> None:
        self.in_specs = in_specs
        self.sizes = sizes
        self.lengths: dict[tuple[Axes, int], int] = {}  # (axes, padded length): original length

    def shards(self, axes: Axes) -> int:
        return math.prod(self.sizes.get(a, 1) for a in axes)

    def pad(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Pads every sharded dimension of the arguments to a multiple of its number of shards."""
        return _map_with_specs(self.pad_array, self.in_specs, args)

    def pad_array(self, x: Any, spec: PartitionSpec | None) -> Any:
        if spec is None or len(spec.partitions) > jnp.ndim(x):
            return x  # a static argument, or JAX will raise
        widths = [(0, 0)] * jnp.ndim(x)
        for d, entry in enumerate(spec.partitions):
            axes, length = spec_axes(entry), jnp.shape(x)[d]
            missing = -length % self.shards(axes)
            if not axes:
                continue
            widths[d] = (0, missing)
            other = self.lengths.setdefault((axes, length + missing), length)
            if other != length:
                raise FixArgumentsError(
                    f"dimensions of length {other} and {length} are both padded to "
                    f"{length + missing} over {axes}, so the original length of an output is "
                    "ambiguous. Pad the arguments yourself."
                )
        return jnp.pad(x, widths) if any(after for _, after in widths) else x

    def unpad(self, outputs: Any, out_specs: Any) -> Any:
        return _map_with_specs(self.unpad_array, out_specs, outputs)

    def unpad_array(self, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        for d, entry in enumerate(spec.partitions):
            axes, length = spec_axes(entry), x.shape[d]
            original = {new: old for (a, new), old in self.lengths.items() if a == axes}
            padded = {new for new, old in original.items() if new != old}
            if not padded:
                continue
            if length in original:
                x = jax.lax.slice_in_dim(x, 0, original[length], axis=d)
            elif length != self.shards(axes):  # one row per device is not a batch dimension
                raise FixArgumentsError(
                    f"dimension {d} of an output of shape {x.shape} is sharded over {axes}, like "
                    f"inputs that were padded to {sorted(padded)}, but has another length, so its "
                    "padding cannot be removed. Return the rows of the batch in a dimension of "
                    "their own, or pad the arguments yourself."
                )
        return x


def _map_with_specs(function: Callable[[Any, Any], Any], specs: Any, tree: Any) -> Any:
    return jax.tree.map(
        lambda spec, part: jax.tree.map(lambda x: function(x, spec), part),
        specs,
        tree,
        is_leaf=lambda x: x is None or isinstance(x, PartitionSpec),
    )
