"""Computes norms, coefficients and the clipped sum from the outputs of the batched program."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.accumulate.coefficients import coefficients, tree_norm, usable
from bevel.clipping.accumulate.example_gradients import ExampleGradients
from bevel.clipping.accumulate.integer_grid import tightened
from bevel.clipping.accumulate.rescaling import InRange, in_range
from bevel.clipping.norms import Norm
from bevel.clipping.norms.weighting import mask_examples
from bevel.clipping.options import Clip, Task
from bevel.clipping.plan import ClipPlan, ExampleOutputs
from bevel.sharding.sharding_like import with_sharding_like
from bevel.sharding.types import varying_axes

# (coefficients of each group, which examples count, norms by leaf) -> sums by leaf
RecomputedSums = Callable[[list[Any], Any, Mapping[int, Norm]], dict[int, Any]]


def clip_and_sum(
    task: Task,
    plan: ClipPlan,
    outputs: ExampleOutputs,
    params: Sequence[Any],
    padding: Any,
    recomputed: RecomputedSums,
    earlier: Sequence[Any] | None = None,
) -> tuple[list[Any], list[Any]]:
    """The clipped sum of each leaf, and the per-example outputs that were requested.

    `recomputed` gives the sums of the leaves that a second backward pass computes. All sums are
    added to those of `earlier` microbatches.
    """
    gradients = ExampleGradients.read(task, plan, outputs, params)
    large = [leaf for leaf in gradients.leaves if gradients.in_one_pass(leaf)]
    others = [leaf for leaf in gradients.leaves if leaf not in large]
    other_norms = gradients.norms(others)
    norms = [((leaf,), norm) for leaf, norm in other_norms.items()]

    def weighted(measured: InRange) -> tuple[dict[int, Any], list[Any], Any, Any]:
        total, factors = _clip_factors(task.clip, plan, [*norms, *measured.norms], outputs)
        keep = usable(total, padding, task.clip.nan_safe)
        own = measured.factors(factors, keep, plan.groups.of_leaf)
        sums = measured.gradients.sums_of_finite(own, earlier)
        return sums, factors, keep, total.estimate

    sums, factors, keep, estimate = in_range(
        gradients, large, padding, task.clip.nan_safe, plan.layout.batch_axes, weighted
    )
    again = [leaf for leaf in others if gradients.recomputes(leaf)]
    masked = [leaf for leaf in gradients.leaves if leaf not in (*again, *sums)]
    more = gradients.sums(masked, factors, keep)
    more |= recomputed(factors, keep, {leaf: other_norms[leaf] for leaf in again})
    if earlier is not None:
        more = {leaf: earlier[leaf] + total for leaf, total in more.items()}
    sums |= more

    rows = [outputs.value] if task.return_values else []
    rows += [estimate] if task.return_norms else []
    rows += outputs.aux if task.has_aux else []
    return [sums[leaf] for leaf in sorted(sums)], [
        row if padding is None else mask_examples(~padding, row) for row in rows
    ]


def _clip_factors(
    clip: Clip,
    plan: ClipPlan,
    norms: Sequence[tuple[tuple[int, ...], Norm]],
    outputs: ExampleOutputs,
) -> tuple[Norm, list[jax.Array]]:
    """The norm of each example's whole contribution, and each group's coefficients (B,).

    `norms` are pairs of leaves and their norms, (B,) or one row for each.
    """
    if not norms:
        count = jax.tree.leaves(outputs)[0].shape[0]
        return Norm(jnp.zeros(count), jnp.zeros(count)), []
    batch_axes = plan.layout.batch_axes
    total = tree_norm([norm for _, norm in norms], batch_axes)
    factors = []
    clip_norms = plan.groups.clip_norms
    if clip.grid_scale is not None:
        leaves = jax.tree.leaves(outputs.contribution)
        dimension = sum(_coordinates(x, batch_axes) for x in leaves)
        clip_norms = [tightened(norm, clip.grid_scale, dimension) for norm in clip_norms]
    for group, clip_norm in enumerate(clip_norms):
        members = list[Norm]()
        for several, norm in norms:
            own = [i for i, leaf in enumerate(several) if plan.groups.of_leaf[leaf] == group]
            some = 0 < len(own) < len(several)
            members += [Norm(*(x[np.array(own)] for x in norm)) if some else norm] if own else []
        rows = [plan.groups.of_leaf[leaf] == group for several, _ in norms for leaf in several]
        part = any(rows) and not all(rows)
        norm = tree_norm(members, batch_axes) if part else total
        factors.append(coefficients(norm, clip_norm, clip))
    return total, factors


def _coordinates(gradient: jax.Array, batch_axes: Collection[str]) -> int:
    """The number of elements of one example's gradient, over all shards that split it."""
    split = varying_axes(gradient) - set(batch_axes)
    return int(np.prod(gradient.shape[1:])) * math.prod(map(jax.lax.axis_size, split))


def sharded_like_params(plan: ClipPlan, sums: Sequence[Any], params: Sequence[Any]) -> list[Any]:
    """The sums with the shardings of their parameters."""
    layout = plan.layout
    if not plan.like_params or layout.manual:
        return list(sums)
    known = layout.params or [None] * len(sums)
    return [
        with_sharding_like(total, param, own, layout.explicit_mesh)
        for total, param, own in zip(sums, params, known, strict=True)
    ]


def finish(task: Task, plan: ClipPlan, sums: Sequence[Any], params: Sequence[Any]) -> list[Any]:
    """The sums: reduced over `reduce_axes`, normalised, cast, sharded like parameters."""
    finished = []
    for leaf, total in enumerate(sums):
        if task.reduce_axes:
            total = jax.lax.psum(total, task.reduce_axes)
        if plan.like_params and task.clip.grid_scale is None:
            dtype = precision.accumulation_dtype(total.dtype, params[leaf].dtype)
            total = total.astype(dtype)
        if task.clip.normalize_by != 1.0:
            total = total / task.clip.normalize_by
        if task.dtype is not None:
            total = total.astype(task.dtype)
        finished.append(total)
    return sharded_like_params(plan, finished, params)
