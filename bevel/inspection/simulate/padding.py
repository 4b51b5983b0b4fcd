"""Fill up what a mesh does not divide, and cut the results back."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from bevel.errors import FixArgumentsError
from bevel.sharding.types import spec_axes

Axes = tuple[str, ...]


class Padding:
    """Zeros at the end of dimensions that do not divide, one call's worth."""

    def __init__(self, in_specs: Any, sizes: Mapping[str, int]) -> None:
        self.in_specs = in_specs
        self.sizes = sizes
        self.filled: dict[tuple[Axes, int], int] = {}  # axes and new length to the old length

    def places(self, axes: Axes) -> int:
        return math.prod(self.sizes.get(a, 1) for a in axes)

    def fill(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, every sharded dimension a multiple of its number of places."""
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda x: self.fill_array(x, spec), part),
            self.in_specs,
            args,
            is_leaf=_is_spec,
        )

    def fill_array(self, x: Any, spec: PartitionSpec | None) -> Any:
        if spec is None or len(spec.partitions) > jnp.ndim(x):
            return x  # static, or JAX raises
        widths = [(0, 0)] * jnp.ndim(x)
        for d, entry in enumerate(spec.partitions):
            axes, length = spec_axes(entry), jnp.shape(x)[d]
            missing = -length % self.places(axes)
            if not axes:
                continue
            widths[d] = (0, missing)
            before = self.filled.setdefault((axes, length + missing), length)
            if before != length:
                raise FixArgumentsError(
                    f"dimensions of {before} and {length} are both filled up to "
                    f"{length + missing} over {axes}: which one an output is cut back to cannot "
                    "be told. Pad the arguments yourself."
                )
        return jnp.pad(x, widths) if any(after for _, after in widths) else x

    def cut(self, outputs: Any, out_specs: Any) -> Any:
        """The outputs without what comes from the filled rows."""
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda x: self.cut_array(x, spec), part),
            out_specs,
            outputs,
            is_leaf=_is_spec,
        )

    def cut_array(self, x: jax.Array, spec: PartitionSpec) -> jax.Array:
        for d, entry in enumerate(spec.partitions):
            axes, length = spec_axes(entry), x.shape[d]
            before = {new: old for (a, new), old in self.filled.items() if a == axes}
            padded = {new for new, old in before.items() if new != old}
            if not padded:
                continue
            if length in before:
                x = jax.lax.slice_in_dim(x, 0, before[length], axis=d)
            elif length != self.places(axes):  # one row for each device is no row of a batch
                raise FixArgumentsError(
                    f"dimension {d} of an output of shape {x.shape} is sharded over {axes}, as "
                    f"inputs that were filled up to {sorted(padded)}, but has another length: "
                    "what to cut cannot be told. Return the rows of the batch in a dimension of "
                    "their own, or pad the arguments yourself."
                )
        return x


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)
