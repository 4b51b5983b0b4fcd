"""Norms, coefficients and the sum: from what each example gives to the clipped sum."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from bevel import precision
from bevel.clipping.accumulate.coefficients import coefficients, side_by_side, tree_norm, usable
from bevel.clipping.accumulate.integer_grid import on_grid, tightened
from bevel.clipping.norms import MeasuredNorm, Norm, materialised_norm, quick_norm
from bevel.clipping.norms.weighting import chosen, weighted_rows, weighted_rows_of
from bevel.clipping.options import Clip, Task
from bevel.clipping.uses.shared_terms import derivative, terms_of
from bevel.clipping.uses.taps import TappedParameter, TapReading
from bevel.errors import FixArgumentsError
from bevel.sharding.axes import MeshLayout
from bevel.sharding.sharding_like import with_sharding_like
from bevel.sharding.source_lines import keep_line
from bevel.sharding.types import explicit_sharding, on_one_device, varying_axes

# Norms of so many numbers, in the whole batch, are first taken in one pass.
ONE_PASS = {"cpu": 2**12, "gpu": 2**22, "tpu": 2**22}


class ExampleOutputs(NamedTuple):
    """What one example gives; after batching, every array has a leading example axis."""

    value: Any
    aux: list[Any]
    contribution: Any  # gradients of the kept parameters, or the output of clipped_fun
    readings: list[TapReading]  # one per equation that tapped parameters are used in


class _ClipGroups(NamedTuple):
    """Leaves that are clipped together: the clip norm of each group, and the group of each leaf."""

    clip_norms: list[Any]
    of_leaf: list[int]


@dataclasses.dataclass(frozen=True)
class Shares:
    """Which leaf of the result comes from where."""

    taps: list[TappedParameter]
    reads: list[Any]  # the path of each reading, or the common term
    program: ClosedJaxpr  # the loss of one example
    kept: list[int]
    out_tree: Any
    aux_tree: Any
    like_params: bool
    groups: _ClipGroups


def group_by_clip_norm(clip: Clip, out_tree: Any) -> _ClipGroups:
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
    return _ClipGroups(clip.norms, jax.tree.leaves(spread))


def combine(
    task: Task,
    shares: Shares,
    layout: MeshLayout,
    outputs: ExampleOutputs,
    params: Sequence[Any],
    padding: Any,
    again: Callable[[list[Any], Any], dict[int, Any]],
) -> tuple[list[Any], list[Any]]:
    """The sums over the examples, one per leaf, and the per-example outputs that were asked for.

    `again(coefficients of each group, which examples count)` gives the sums that a second backward
    pass takes.
    """
    kept = dict(zip(shares.kept, jax.tree.leaves(outputs.contribution), strict=True))
    made = _gradients_of(shares, layout, _rounded_once(outputs.readings), params)
    kept |= {t.param: t.formed(made.pop(t.param)) for t in shares.taps if t.way == "form"}
    kept = {leaf: _once_in_rows(gradient) for leaf, gradient in kept.items()}
    source = _Source(task, shares, kept, made)
    large = [leaf for leaf in source.leaves if source.in_one_pass(leaf)]
    others = [leaf for leaf in source.leaves if leaf not in large]
    small = source.norms(others)

    def sums_of(norms: dict[int, Norm], clean: bool) -> tuple[dict[int, Any], list[Any], Any, Any]:
        whole, factors = _clip_factors(task.clip, shares.groups, norms, layout, outputs)
        keep = usable(whole, padding, task.clip.nan_safe)
        return source.sums(large, factors, keep, clean), factors, keep, whole.estimate

    if large:
        # In one pass, which is sound if no square leaves the range of a float: known afterwards.
        quick = {leaf: source.measured(leaf) for leaf in large}
        sound = functools.reduce(operator.and_, [m.sound for p in quick.values() for m in p])
        norms = {leaf: side_by_side([m.norm for m in parts]) for leaf, parts in quick.items()}
        sums, factors, keep, estimate = jax.lax.cond(
            _agreed(jnp.all(sound), layout.batch_axes),
            lambda: sums_of(small | norms, clean=True),
            lambda: sums_of(small | source.norms(large), clean=False),
        )
    else:
        sums, factors, keep, estimate = sums_of(small, clean=False)
    sums |= source.sums([leaf for leaf in others if not source.again(leaf)], factors, keep)
    sums |= again(factors, keep)

    rows = [outputs.value] if task.return_values else []
    rows += [estimate] if task.return_norms else []
    rows += outputs.aux if task.has_aux else []
    return [sums[leaf] for leaf in sorted(sums)], [
        row if padding is None else chosen(~padding, row) for row in rows
    ]


def _gradients_of(
    shares: Shares, layout: MeshLayout, readings: Sequence[TapReading], params: Sequence[Any]
) -> dict[int, list[Any]]:
    """The gradients of each tapped parameter at its uses, not formed."""
    read = dict(zip(shares.reads, readings, strict=True))
    made = {}
    for tap in shares.taps:
        own = [read[use.path] for use in tap.uses]
        found = tap.gradients(own, layout.pieces, params)
        computed = any(use.turns for use in tap.uses)
        made[tap.param] = _rounded_once(found) if computed else found
        if tap.common:
            numbers = [read[common].g for common in tap.common]
            common = [derivative(shares.program, c, tap.param, params) for c in tap.common]
            terms = terms_of(numbers, common, list(zip(tap.uses, own, strict=True)))
            made[tap.param].append(_rounded_once(terms))
    return made


def _rounded_once(values: Any) -> Any:
    """The same values, of which norm and sum see the same numbers.

    Without the barrier the compiler may compute a bfloat16 gradient twice, once without rounding
    it, and the norm would be that of another gradient than the one that is summed.
    """
    # Leaf by leaf: a joint barrier would give all of them the manual axes of each.
    return jax.tree.map(jax.lax.optimization_barrier, values)


def _once_in_rows(gradient: jax.Array) -> jax.Array:
    """As `_rounded_once`. On a CPU by itself, also in memory row by row.

    What a scan has stacked lies there layer by layer: norm and sum would each put it in order.
    """
    alone = on_one_device() and jax.default_backend() == "cpu"
    if not alone or gradient.ndim < 3 or explicit_sharding(gradient) is not None:
        return _rounded_once(gradient)
    rows = gradient.reshape(gradient.shape[0], math.prod(gradient.shape[1:]))
    return _rounded_once(rows).reshape(gradient.shape)


@dataclasses.dataclass(frozen=True)
class _Source:
    """What the norms and sums of the leaves are made of."""

    task: Task
    shares: Shares
    gradients: dict[int, Any]
    made: dict[int, list[Any]]  # of tapped parameters

    @property
    def leaves(self) -> list[int]:
        return sorted((*self.gradients, *self.made))

    def tap(self, leaf: int) -> TappedParameter | None:
        """The taps of a leaf whose gradient is not formed."""
        taps = (tap for tap in self.shares.taps if tap.param == leaf)
        return next(taps) if leaf in self.made else None

    def again(self, leaf: int) -> bool:
        tap = self.tap(leaf)
        return tap is not None and tap.again

    def in_one_pass(self, leaf: int) -> bool:
        """Whether the norm of a leaf is first taken without scaling, to read its values once."""
        arrays = jax.tree.leaves(self.made.get(leaf, self.gradients.get(leaf)))
        return sum(x.size for x in arrays) >= one_pass() and not self.again(leaf)

    def measured(self, leaf: int) -> list[MeasuredNorm]:
        """Norms without scaling."""
        tap = self.tap(leaf)
        if tap is None:
            return [quick_norm(self.gradients[leaf])]
        return tap.norms(self.made[leaf], False)

    def norms(self, leaves: Collection[int]) -> dict[int, Norm]:
        """Norms with scaling. Leaves that are measured together stand under the first of them."""
        found = {}
        for first, *others in self.together(leaves):
            tap = self.tap(first)
            if others:
                found[first] = materialised_norm(
                    _in_one_row([self.gradients[i] for i in (first, *others)])
                )
            elif tap is None:
                found[first] = materialised_norm(self.gradients[first])
            else:
                parts = tap.norms(self.made[first], True)
                found[first] = side_by_side([m.norm for m in parts])
        return found

    def together(self, leaves: Collection[int]) -> list[list[int]]:
        """Lists of leaves to measure together: many small ones take longer than their sum.

        Only on one device, where putting them side by side moves nothing; only leaves of one group,
        whose shards are shards of the same axes.
        """
        if not on_one_device():
            return [[leaf] for leaf in leaves]
        lists = dict[Any, list[int]]()
        for leaf in leaves:
            gradient = self.gradients.get(leaf)
            key: Any = leaf
            small = gradient is not None and gradient.size <= one_pass() // 8
            if small and explicit_sharding(gradient) is None:
                key = "small", self.shares.groups.of_leaf[leaf], varying_axes(gradient)
            lists.setdefault(key, []).append(leaf)
        return list(lists.values())

    def sums(
        self, leaves: Collection[int], factors: Sequence[Any], keep: Any, clean: bool = False
    ) -> dict[int, Any]:
        """The weighted sums. `clean`: all numbers are finite, so a coefficient 0 removes them."""
        result = {}
        if clean:
            factors, keep = [chosen(keep, factor) for factor in factors], None
        # By themselves: else a GPU's compiler sums kept gradients in the kernel that scales the
        # values of all taps, which then has a third of its bandwidth.
        for_taps = _rounded_once(factors)
        formed = {tap.param: tap.shape for tap in self.shares.taps if tap.way == "form"}
        for leaf in leaves:
            group, tap = self.shares.groups.of_leaf[leaf], self.tap(leaf)
            if tap is None:
                total = _kept_sum(self.task, self.gradients[leaf], factors[group], keep)
                whole = leaf not in formed
                result[leaf] = total if whole else total[tuple(map(slice, formed[leaf]))]
            else:
                with keep_line(tap.uses[0].eqn):
                    result[leaf] = tap.weighted_sum(self.made[leaf], for_taps[group], keep)
        return result


def one_pass() -> int:
    return ONE_PASS.get(jax.default_backend(), ONE_PASS["gpu"])


def _in_one_row(gradients: Sequence[jax.Array]) -> jax.Array:
    """The numbers of several gradients (B, ...) side by side: (B, N)."""
    dtype = precision.accumulation_dtype(*(g.dtype for g in gradients))
    return jnp.concatenate([g.reshape(g.shape[0], -1).astype(dtype) for g in gradients], axis=1)


def _agreed(sound: jax.Array, batch_axes: Collection[str]) -> jax.Array:
    """The same answer on all shards whose norms are added up: branches with collectives need it."""
    axes = tuple(sorted(varying_axes(sound) - set(batch_axes)))
    return jax.lax.pmin(sound.astype(np.int32), axes) > 0 if axes else sound


def _clip_factors(
    clip: Clip,
    groups: _ClipGroups,
    norms: dict[int, Norm],
    layout: MeshLayout,
    outputs: ExampleOutputs,
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
        dimension = sum(_coordinates(x, layout.batch_axes) for x in leaves)
        clip_norms = [tightened(norm, clip.grid_scale, dimension) for norm in clip_norms]
    for group, clip_norm in enumerate(clip_norms):
        members = [norm for leaf, norm in norms.items() if groups.of_leaf[leaf] == group]
        part = 0 < len(members) < len(norms)
        norm = tree_norm(members, layout.batch_axes) if part else whole
        factors.append(coefficients(norm, clip_norm, clip))
    return whole, factors


def _coordinates(gradient: jax.Array, batch_axes: Collection[str]) -> int:
    """How many numbers one example's gradient has, on all shards that it is split over."""
    split = varying_axes(gradient) - set(batch_axes)
    return int(np.prod(gradient.shape[1:])) * math.prod(map(jax.lax.axis_size, split))


def _kept_sum(task: Task, gradient: Any, factor: Any, keep: Any) -> jax.Array:
    """The sum over examples of `factor * gradient`, in float32 or wider, or on the integer grid."""
    if task.clip.grid_scale is None:
        if keep is None:
            return weighted_rows(factor, gradient)
        return weighted_rows_of(keep, factor, gradient)
    dtype = precision.accumulation_dtype(gradient.dtype, factor.dtype)
    weighted = _along(factor, gradient).astype(dtype) * chosen(keep, gradient).astype(dtype)
    return jnp.sum(on_grid(weighted, task.clip.grid_scale), axis=0)


def finish(
    task: Task, shares: Shares, layout: MeshLayout, sums: Sequence[Any], params: Sequence[Any]
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
            total = with_sharding_like(
                total, params[leaf], layout.params[leaf], layout.explicit_mesh
            )
        finished.append(total)
    return finished


def _along(factor: jax.Array, like: jax.Array) -> jax.Array:
    """`factor` (B,) shaped to multiply `like` (B, ...)."""
    return jnp.expand_dims(factor, tuple(range(1, like.ndim)))
