"""`clip_pytree` and `clip_and_round_to_grid`: clip one tree of arrays."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.checks import shown, whole_number, without_mask
from bevel.clipping.accumulate.clip_groups import group_by_clip_norm
from bevel.clipping.accumulate.coefficients import coefficients, tree_norm
from bevel.clipping.accumulate.integer_grid import on_grid, tightened
from bevel.clipping.norms import Norm, materialised_norm
from bevel.clipping.norms.weighting import mask_examples
from bevel.clipping.options import Clip
from bevel.errors import FixArgumentsError

PyTree = Any


class ClippedTreeAndNorm(NamedTuple):
    """A clipped tree and the float32 norm that the whole tree had before."""

    clipped: PyTree
    norm: jax.Array


def clip_pytree(
    pytree: PyTree, clip_norm: float | PyTree, rescale_to_unit_norm: bool = False
) -> ClippedTreeAndNorm:
    """Scales a tree so that its L2 norm is at most `clip_norm`.

    Args:
      pytree: arrays of real floating-point numbers.
      clip_norm: one number, or a tree of numbers that is a prefix of `pytree`: each subtree is then
        clipped by itself.
      rescale_to_unit_norm: divide by the clip norm too, so that norms are at most 1. With a clip
        norm of 0, every tree that is not zero gets norm 1, up to the slack for rounding.

    Returns:
      `(clipped, norm)`. Leaves keep their dtype; the norm never exceeds the bound, rounding to that
      dtype included. A tree that holds NaN or inf gives zeros and a norm that is not finite.
    """
    clip = Clip.checked(clip_norm, rescale_to_unit_norm=rescale_to_unit_norm)
    stacks, tree = _stacked(pytree)
    groups = group_by_clip_norm(clip, tree)
    if not stacks:
        return ClippedTreeAndNorm(pytree, jnp.zeros((), jnp.float32))
    norms = [materialised_norm(x) for x in stacks]
    whole = tree_norm(norms)
    keep = jnp.isfinite(whole.upper)
    clipped = []
    for position, x in enumerate(stacks):
        group = groups.of_leaf[position]
        members = [n for n, of in zip(norms, groups.of_leaf, strict=True) if of == group]
        factor = coefficients(tree_norm(members), groups.clip_norms[group], clip)[0]
        wide = mask_examples(keep, x)[0].astype(precision.accumulation_dtype(x.dtype))
        clipped.append(_rounded_down(wide * factor.astype(wide.dtype), x.dtype))
    return ClippedTreeAndNorm(jax.tree.unflatten(tree, clipped), _reported(whole))


def _reported(norm: Norm) -> jax.Array:
    return norm.estimate[0].astype(np.float32)


def _stacked(pytree: PyTree) -> tuple[list[jax.Array], Any]:
    """The leaves of a tree, each as a stack of one, and its structure."""
    if isinstance(pytree, Iterator):
        raise FixArgumentsError("the tree is an iterator: pass a list, a dict or an array.")
    leaves, tree = jax.tree.flatten(pytree)
    stacks = [_as_stack(leaf) for leaf in leaves]
    for x in stacks:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise FixArgumentsError(
                f"a leaf of shape {x.shape[1:]} has dtype {x.dtype}: only real floating-point "
                "arrays can be clipped. Cast it, or leave it out of the tree."
            )
    return stacks, tree


def _as_stack(leaf: Any) -> jax.Array:
    without_mask("a leaf", leaf)
    try:
        return jnp.asarray(leaf)[None]
    except Exception as error:  # JAX asks a leaf for its repr
        raise FixArgumentsError(
            f"a leaf is {shown(leaf)}: only real floating-point arrays can be clipped."
        ) from error


def _rounded_down(x: jax.Array, dtype: Any) -> jax.Array:
    """`x` in a narrower dtype, rounded so that the norm does not grow.

    Near zero, relative rounding errors are large.
    """
    low = x.astype(dtype)
    if low.dtype == x.dtype:
        return low
    longer = jnp.abs(low.astype(x.dtype)) > jnp.abs(x)
    return jnp.where(longer, jnp.nextafter(low, jnp.zeros_like(low)), low)


def clip_and_round_to_grid(
    gradient: PyTree, l2_clip_norm: float, grid_scale: int
) -> tuple[PyTree, jax.Array]:
    """Clips a tree and rounds it to multiples of `l2_clip_norm / grid_scale`, as int64 (needs x64).

    The clip norm is tightened by the most that rounding can add, so the integers have L2 norm at
    most `grid_scale`. Returns `(integers, float32 norm before clipping)`. A tree of clip norms is
    an error.
    """
    clip = Clip.checked(l2_clip_norm, grid_scale=whole_number("grid_scale", grid_scale))
    stacks, tree = _stacked(gradient)
    if not stacks:
        return gradient, jnp.zeros((), jnp.float32)
    dimension = sum(int(np.prod(x.shape)) for x in stacks)
    norm = tree_norm([materialised_norm(x) for x in stacks])
    keep = jnp.isfinite(norm.upper)
    limit = tightened(clip.norms[0], grid_scale, dimension)
    factor = coefficients(norm, limit, clip)[0]
    integers = [
        on_grid(mask_examples(keep, x)[0].astype(factor.dtype) * factor, clip.norms[0], grid_scale)
        for x in stacks
    ]
    return jax.tree.unflatten(tree, integers), _reported(norm)
