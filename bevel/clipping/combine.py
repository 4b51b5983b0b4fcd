"""Norms, coefficients and the sum: from what each example gives to the clipped sum."""

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.coefficients import coefficients, tree_norm, usable
from bevel.clipping.grid import on_grid, tightened
from bevel.clipping.norms import Norm, kept_norm
from bevel.clipping.options import Clip, Task
from bevel.clipping.taps import Tap
from bevel.errors import FixArgumentsError
from bevel.sharding.axes import Layout
from bevel.sharding.placed import placed_like
from bevel.sharding.types import varying_axes


class Outputs(NamedTuple):
    """What one example gives; after batching, every array has a leading example axis."""

    value: Any
    aux: list[Any]
    contribution: Any  # gradients of the kept parameters, or the output of clipped_fun
    others: list[Any]  # h, one per tap
    cotangents: list[Any]  # g, one per tap


class Groups(NamedTuple):
    """Leaves that are clipped together: the clip norm of each group, and the group of each leaf."""

    clip_norms: list[Any]
    of_leaf: list[int]


@dataclasses.dataclass(frozen=True)
class Shares:
    """Which leaf of the result comes from where."""

    taps: list[Tap]
    kept: list[int]
    out_tree: Any
    aux_tree: Any
    like_params: bool
    groups: Groups


def group_by_clip_norm(clip: Clip, out_tree: Any) -> Groups:
    """Spreads a clip norm, or a prefix tree of them, over the leaves of the result."""
    numbers = jax.tree.unflatten(out_tree, range(out_tree.num_leaves))
    group_tree: Any = jax.tree.structure(clip.l2_clip_norm)
    groups = jax.tree.unflatten(group_tree, range(group_tree.num_leaves))
    try:
        spread = jax.tree.map(lambda g, sub: jax.tree.map(lambda _: g, sub), groups, numbers)
    except (ValueError, TypeError, KeyError) as error:
        raise FixArgumentsError(
            f"l2_clip_norm is a tree of structure {group_tree}, which is not a prefix of what is "
            f"clipped, {out_tree}. Give one number, or a tree with a number in place of each "
            f"subtree to be clipped by itself. JAX says: {error}"
        ) from error
    return Groups(clip.norms, jax.tree.leaves(spread))


def combine(
    task: Task, shares: Shares, layout: Layout, outputs: Outputs, padding: Any
) -> tuple[list[Any], list[Any]]:
    """The sums over the examples, one per leaf, and the per-example outputs that were asked for."""
    outputs = rounded_once(outputs)
    gradients = dict(zip(shares.kept, jax.tree.leaves(outputs.contribution), strict=True))
    taps = {tap.param: tap for tap in shares.taps}
    read = zip(outputs.others, outputs.cotangents, strict=True)
    pairs = dict(zip(taps, read, strict=True))
    norms: dict[int, Norm] = {leaf: kept_norm(g) for leaf, g in gradients.items()}
    for leaf, (h, g) in pairs.items():
        norms[leaf] = taps[leaf].norm(h, g)
    whole, factors = clip_factors(task.clip, shares.groups, norms, layout, outputs)
    keep = usable(whole, padding, task.clip.nan_safe)

    sums = []
    for leaf in range(shares.out_tree.num_leaves):
        factor = factors[shares.groups.of_leaf[leaf]]
        if leaf in gradients:
            sums.append(kept_sum(task, gradients[leaf], factor, keep))
        else:
            h, g = pairs[leaf]
            dtype = precision.accumulation_dtype(g.dtype, factor.dtype)
            weighted = along(factor, g).astype(dtype) * chosen(keep, g).astype(dtype)
            sums.append(taps[leaf].weighted_sum(chosen(keep, h), weighted))

    rows = [outputs.value] if task.return_values else []
    rows += [whole.estimate] if task.return_norms else []
    rows += outputs.aux if task.has_aux else []
    return sums, [row if padding is None else chosen(~padding, row) for row in rows]


def rounded_once(outputs: Outputs) -> Outputs:
    """The same outputs, of which norm and sum see the same numbers.

    Without the barrier the compiler may compute a bfloat16 gradient twice, once without rounding
    it, and the norm would be that of another gradient than the one that is summed.
    """
    summed = outputs.contribution, outputs.others, outputs.cotangents
    # Leaf by leaf: a joint barrier would give all of them the manual axes of each.
    contribution, others, cotangents = jax.tree.map(jax.lax.optimization_barrier, summed)
    return outputs._replace(contribution=contribution, others=others, cotangents=cotangents)


def clip_factors(
    clip: Clip, groups: Groups, norms: dict[int, Norm], layout: Layout, outputs: Outputs
) -> tuple[Norm, list[jax.Array]]:
    """The norm of each example's whole contribution, and each group's coefficients (B,)."""
    if not norms:
        count = jax.tree.leaves(outputs)[0].shape[0]
        return Norm(jnp.zeros(count), jnp.zeros(count)), []
    whole = tree_norm(list(norms.values()), layout.batch_axes)
    factors = []
    clip_norms = groups.clip_norms
    if clip.grid_scale is not None:
        leaves = jax.tree.leaves(outputs.contribution)
        dimension = sum(coordinates(x, layout.batch_axes) for x in leaves)
        clip_norms = [tightened(norm, clip.grid_scale, dimension) for norm in clip_norms]
    for group, clip_norm in enumerate(clip_norms):
        members = [norms[leaf] for leaf, of in enumerate(groups.of_leaf) if of == group]
        part = 0 < len(members) < len(norms)
        norm = tree_norm(members, layout.batch_axes) if part else whole
        factors.append(coefficients(norm, clip_norm, clip))
    return whole, factors


def coordinates(gradient: jax.Array, batch_axes: Collection[str]) -> int:
    """How many numbers one example's gradient has, on all shards that it is split over."""
    split = varying_axes(gradient) - set(batch_axes)
    return int(np.prod(gradient.shape[1:])) * math.prod(map(jax.lax.axis_size, split))


def kept_sum(task: Task, gradient: Any, factor: Any, keep: Any) -> jax.Array:
    """The sum over examples of `factor * gradient`, in float32 or wider, or on the integer grid."""
    dtype = precision.accumulation_dtype(gradient.dtype, factor.dtype)
    weighted = along(factor, gradient).astype(dtype) * chosen(keep, gradient).astype(dtype)
    if task.clip.grid_scale is not None:
        weighted = on_grid(weighted, task.clip.grid_scale)
    return jnp.sum(weighted, axis=0)


def finish(
    task: Task, shares: Shares, layout: Layout, sums: Sequence[Any], params: Sequence[Any]
) -> list[Any]:
    """The sums, reduced over manual axes if asked, normalised, cast, placed like the parameters."""
    finished = []
    for leaf, total in enumerate(sums):
        if task.reduce_axes:
            total = jax.lax.psum(total, task.reduce_axes)
        if shares.like_params and task.clip.grid_scale is None:
            dtype = precision.accumulation_dtype(total.dtype, params[leaf].dtype)
            total = total.astype(dtype)
        if task.clip.normalize_by != 1.0:
            total = total / task.clip.normalize_by
        if task.dtype is not None:
            total = total.astype(task.dtype)
        if shares.like_params and not layout.manual:
            total = placed_like(total, params[leaf], layout.params[leaf], layout.explicit_mesh)
        finished.append(total)
    return finished


def along(factor: jax.Array, like: jax.Array) -> jax.Array:
    """`factor` (B,) shaped to multiply `like` (B, ...)."""
    return jnp.expand_dims(factor, tuple(range(1, like.ndim)))


def chosen(keep: jax.Array | None, x: jax.Array) -> jax.Array:
    """`x` with unwanted examples replaced by zeros: selected, for 0 times inf is NaN."""
    if keep is None or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return jnp.where(along(keep, x), x, jnp.zeros_like(x))
