"""Norms and sums of a stacked parameter, one layer after the other.

For a parameter (layers, ...) of which each step of a `scan` reads its own slice, on a mesh. Under
FSDP every device sums a layer over its own examples, and the result is then reduced and split over
the devices. A loop that shards each layer's sum like its slice of the parameter holds one whole
layer at a time. Otherwise all layers would be summed first and split afterwards.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from bevel.clipping.norms import MeasuredNorm
from bevel.clipping.norms.convolution import ConvolutionGradient
from bevel.clipping.norms.outer_products import OuterProducts
from bevel.clipping.uses.taps import TappedParameter, norm_from_steps
from bevel.clipping.uses.views import is_one_slice_per_step
from bevel.sharding.axes import MeshLayout
from bevel.sharding.sharding_like import with_sharding_like
from bevel.sharding.types import on_one_device

Tree = TypeVar("Tree")


def goes_by_slice(tap: TappedParameter, gradients: Sequence[Any], layout: MeshLayout) -> bool:
    """Whether the norm and the sum of a parameter are computed one layer after the other.

    Only where the compiler may split them over a mesh, and where one use reads each layer as it is.
    """
    if on_one_device() or layout.manual or tap.recompute or len(gradients) != 1:
        return False
    layered = isinstance(gradients[0], OuterProducts | ConvolutionGradient)  # (B, layers, ...)
    return layered and is_one_slice_per_step(tap.uses[0].view)


def norm_by_slice(tap: TappedParameter, gradient: Any, scaled: bool) -> MeasuredNorm:
    """As `TappedParameter.norms`, in a loop over the layers."""
    by_layer = layers_first(gradient)

    def norm_of_layer(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        norm, sound = _layer(by_layer, index).norm(tap.way, scaled)
        return jnp.stack(norm, axis=1), sound

    norms, sound = jax.lax.map(norm_of_layer, jnp.arange(tap.shape[0]))
    return norm_from_steps(jnp.swapaxes(norms, 0, 1))._replace(sound=jnp.all(sound, axis=0))


def weighted_sum_by_slice(
    tap: TappedParameter,
    gradient: Any,
    factor: jax.Array,
    keep: Any,
    param: Any,
    layout: MeshLayout,
) -> jax.Array:
    """As `TappedParameter.weighted_sum`, in a loop over the layers."""
    by_layer = layers_first(gradient)

    def sum_of_layer(index: jax.Array) -> jax.Array:
        (total,) = _layer(by_layer, index).weighted_sum(factor, keep, tap.way)
        return tied_to_slice(total, param, index, layout, tap.param)

    return jax.lax.map(sum_of_layer, jnp.arange(tap.shape[0]))


def tied_to_slice(
    total: jax.Array, param: Any, index: Any, layout: MeshLayout, leaf: int
) -> jax.Array:
    """The sum of layer `index`, sharded like that layer of the parameter, which is `leaf`."""
    known = layout.params[leaf] if layout.params else None
    if known is not None:
        known = NamedSharding(known.mesh, PartitionSpec(*known.spec.partitions[1:]))
    like = jax.lax.dynamic_index_in_dim(param, index, keepdims=False)
    return with_sharding_like(total, like, known, layout.explicit_mesh)


def layers_first(values: Tree) -> Tree:
    """Arrays (B, layers, ...) as (layers, B, ...), in which order a loop stacks them, or back."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), values)


def _layer(by_layer: Any, index: jax.Array) -> Any:
    """The gradients (B, 1, ...) of one layer."""
    one = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, index, 1), by_layer)
    return layers_first(one)
