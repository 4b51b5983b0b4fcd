"""Per-example gradients, materialised or at taps, with their norms and weighted sums."""

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.accumulate.coefficients import norm_of_parts
from bevel.clipping.accumulate.integer_grid import on_grid
from bevel.clipping.accumulate.slices import (
    goes_by_slice,
    layers_first,
    norm_by_slice,
    weighted_sum_by_slice,
)
from bevel.clipping.norms import MeasuredNorm, Norm, materialised_norm, unfinished_norm
from bevel.clipping.norms.unfinished import UnfinishedNorm
from bevel.clipping.norms.weighting import mask_examples, weighted_rows, weighted_rows_of
from bevel.clipping.options import Task
from bevel.clipping.plan import ClipPlan, ExampleOutputs
from bevel.clipping.uses.shared_terms import derivative, shared_term_gradients
from bevel.clipping.uses.taps import TappedParameter, TapReading
from bevel.sharding.source_lines import keep_line
from bevel.sharding.types import explicit_sharding, on_one_device, varying_axes

# Above this many elements, in the whole batch, norms are first computed in one pass.
ONE_PASS = {"cpu": 2**12, "gpu": 2**22, "tpu": 2**22}
# A vector is computed in one pass only if it has so many times more elements.
VECTORS = 2**6


@dataclasses.dataclass(frozen=True)
class ExampleGradients:
    """The gradients of all examples, by leaf: materialised, or as values read at taps."""

    task: Task
    plan: ClipPlan
    materialised: dict[int, Any]
    tapped: dict[int, list[Any]]
    params: Sequence[Any]
    together: dict[tuple[int, ...], Any]  # small leaves as rows (B, N)

    @classmethod
    def read(
        cls, task: Task, plan: ClipPlan, outputs: ExampleOutputs, params: Sequence[Any]
    ) -> "ExampleGradients":
        contribution = jax.tree.leaves(outputs.contribution)
        materialised = dict(zip(plan.materialised, contribution, strict=True))
        tapped = _tapped_gradients(plan, _readings_rounded_once(plan, outputs.readings), params)
        for tap in plan.taps:
            if tap.way == "form":
                materialised[tap.param] = tap.formed(tapped.pop(tap.param))
        contiguous = {leaf: _contiguous(gradient) for leaf, gradient in materialised.items()}
        together = {
            tuple(leaves): _concatenated([contiguous[leaf] for leaf in leaves])
            for leaves in _taken_together(plan, contiguous)
        }
        return cls(task, plan, contiguous, tapped, params, together)

    @property
    def leaves(self) -> list[int]:
        return sorted((*self.materialised, *self.tapped))

    def tap(self, leaf: int) -> TappedParameter | None:
        """The taps of a leaf whose gradient is not formed."""
        taps = (tap for tap in self.plan.taps if tap.param == leaf)
        return next(taps) if leaf in self.tapped else None

    def recomputes(self, leaf: int) -> bool:
        """Whether a second backward pass computes the sum of a leaf."""
        tap = self.tap(leaf)
        return tap is not None and tap.recompute

    def values(self, leaf: int) -> Any:
        """The materialised gradient of a leaf, or the gradients at its uses, not formed."""
        return self.tapped[leaf] if leaf in self.tapped else self.materialised[leaf]

    def with_values(self, values: dict[int, Any]) -> "ExampleGradients":
        """The same gradients, with other values for some leaves."""
        kinds = self.materialised, self.tapped
        changed = [{leaf: values.get(leaf, own) for leaf, own in kind.items()} for kind in kinds]
        return dataclasses.replace(self, materialised=changed[0], tapped=changed[1])

    def by_slice(self, leaf: int) -> bool:
        """Whether the layers of a leaf are measured and summed one after the other."""
        tap = self.tap(leaf)
        return tap is not None and goes_by_slice(tap, self.tapped[leaf], self.plan.layout)

    def in_one_pass(self, leaf: int) -> bool:
        """Whether the norm of a leaf is first computed without scaling, to read its values once."""
        arrays = jax.tree.leaves(self.values(leaf))
        # The values of a vector are few beside those that it was computed from. In one pass, it
        # would be compiled twice: with scaling, for the repair, and without.
        threshold = one_pass_threshold() * (VECTORS if self.is_vector(leaf) else 1)
        large = sum(x.size for x in arrays) >= threshold
        return large and not self.recomputes(leaf)

    def is_vector(self, leaf: int) -> bool:
        """Whether a leaf is a vector, whose gradients are not repaired in place.

        They may be the cotangents that are held for a matrix. If both were repaired in place, one
        would be a copy. A GPU sums what is not masked on matrix units, which is worth the copy.
        """
        if jax.default_backend() == "gpu":
            return False
        return leaf in self.materialised and self.materialised[leaf].ndim < 3

    def unfinished_norms(self, leaf: int) -> list[UnfinishedNorm]:
        """Norms without scaling, and whether each is valid: no square over- or underflowed."""
        tap, values = self.tap(leaf), self.values(leaf)
        if tap is None:
            return [unfinished_norm(values)]
        if self.by_slice(leaf):
            measured = norm_by_slice(tap, values[0], scaled=False)
            return [UnfinishedNorm(MeasuredNorm, tuple(measured))]
        return tap.unfinished_norms(values)

    def norms(self, leaves: Collection[int]) -> dict[int, Norm]:
        """Norms with scaling. Leaves that are taken together appear under the first of them."""
        found = dict[int, Norm]()
        for members, rows in self.together.items():
            if members[0] in leaves:
                found[members[0]] = materialised_norm(rows)
        for leaf in self._alone(leaves):
            tap, values = self.tap(leaf), self._values_after(leaf, list(found.values())[-1:])
            if tap is not None:
                parts = self._tapped_norms(tap, values)
                found[leaf] = norm_of_parts([m.norm for m in parts])
            else:
                found[leaf] = materialised_norm(values)
        return found

    def _alone(self, leaves: Collection[int]) -> list[int]:
        """The leaves that are not taken together with others."""
        others = {leaf for members in self.together for leaf in members}
        return [leaf for leaf in leaves if leaf not in others]

    def _values_after(self, leaf: int, earlier: Sequence[Any]) -> Any:
        """The values of a leaf, available only after `earlier` are computed.

        Where values are scaled or masked, this lets one copy exist at a time.
        """
        values, small = self.values(leaf), not self.in_one_pass(leaf)
        # A loop over layers copies one layer at a time anyway, and reads values layer by layer.
        if self.plan.layout.manual or self.by_slice(leaf) or small or not earlier:
            return values
        return jax.lax.optimization_barrier((values, list(earlier)))[0]

    def sums(self, leaves: Collection[int], factors: Sequence[Any], keep: Any) -> dict[int, Any]:
        """The sums, weighted by each group's coefficients, over the examples in `keep`."""
        result = dict[int, Any]()
        for_taps = _rounded_once(factors)
        for leaf in leaves:
            own = factors if self.tap(leaf) is None else for_taps
            values = self._values_after(leaf, list(result.values())[-1:])
            result[leaf] = self._sum(leaf, values, own[self.plan.groups.of_leaf[leaf]], keep)
        return result

    def sums_of_finite(
        self, factors: dict[int, jax.Array], earlier: Sequence[Any] | None = None
    ) -> dict[int, Any]:
        """The sums of gradients with finite values, weighted by coefficients (B,) for each leaf.

        Each is added to that of `earlier` microbatches before the next one is computed.
        """
        result = dict[int, Any]()
        # On one CPU, the compiler does not gain from an order where nothing is masked or added.
        together = earlier is None and jax.default_backend() == "cpu" and on_one_device()
        for leaf, factor in factors.items():
            before = [] if together else list(result.values())[-1:]
            total = self._sum(leaf, self._values_after(leaf, before), factor, None)
            result[leaf] = total if earlier is None else earlier[leaf] + total
        return result

    def _sum(self, leaf: int, values: Any, factor: jax.Array, keep: Any) -> jax.Array:
        tap, layout = self.tap(leaf), self.plan.layout
        if tap is None:
            total = _materialised_sum(self.task, values, factor, keep)
            formed = [t.shape for t in self.plan.taps if t.way == "form" and t.param == leaf]
            # Formed gradients may have trailing zeros.
            return total[tuple(map(slice, formed[0]))] if formed else total
        with keep_line(tap.uses[0].eqn):
            if self.by_slice(leaf):
                param = self.params[tap.param]
                return weighted_sum_by_slice(tap, values[0], factor, keep, param, layout)
            return tap.weighted_sum(values, factor, keep)

    def _tapped_norms(self, tap: TappedParameter, gradients: list[Any]) -> list[MeasuredNorm]:
        if goes_by_slice(tap, gradients, self.plan.layout):
            return [norm_by_slice(tap, gradients[0], scaled=True)]
        return tap.norms(gradients, scaled=True)


def one_pass_threshold() -> int:
    """From this many elements on, norms are first computed in one pass."""
    return ONE_PASS.get(jax.default_backend(), ONE_PASS["gpu"])


def _taken_together(plan: ClipPlan, gradients: dict[int, jax.Array]) -> list[list[int]]:
    """Lists of small leaves to measure together, because many small norms take long.

    Only on one device, where concatenating leaves moves nothing, and only leaves of one group
    that are split over the same axes.
    """
    lists = dict[Any, list[int]]()
    if on_one_device():
        for leaf, gradient in gradients.items():
            if gradient.size < _joined_threshold() and explicit_sharding(gradient) is None:
                key = plan.groups.of_leaf[leaf], varying_axes(gradient)
                lists.setdefault(key, []).append(leaf)
    return [leaves for leaves in lists.values() if len(leaves) > 1]


def _joined_threshold() -> int:
    """Leaves with fewer elements, in the whole batch, are measured together."""
    threshold = one_pass_threshold()
    return threshold if jax.default_backend() == "cpu" else threshold // 8


def _concatenated(gradients: Sequence[jax.Array]) -> jax.Array:
    """The elements of several gradients (B, ...) as rows (B, N)."""
    dtype = precision.accumulation_dtype(*(g.dtype for g in gradients))
    return jnp.concatenate([g.reshape(g.shape[0], -1).astype(dtype) for g in gradients], axis=1)


def _tapped_gradients(
    plan: ClipPlan, readings: Sequence[TapReading], params: Sequence[Any]
) -> dict[int, list[Any]]:
    """The gradients of each tapped parameter at its uses, not formed."""
    read = dict(zip(plan.readings, readings, strict=True))
    gradients = {}
    for tap in plan.taps:
        own = [read[use.path] for use in tap.uses]
        at_uses = tap.gradients(own, plan.layout.pieces, params)
        computed = any(use.combinations for use in tap.uses)
        gradients[tap.param] = _rounded_once(at_uses) if computed else at_uses
        if tap.shared_terms:
            weights = [read[term].g for term in tap.shared_terms]
            derivatives = [
                derivative(plan.loss.jaxpr, term, tap.param, params) for term in tap.shared_terms
            ]
            pairs = list(zip(tap.uses, own, strict=True))
            terms = shared_term_gradients(weights, derivatives, pairs)
            gradients[tap.param].append(_rounded_once(terms))
    return gradients


def _rounded_once(values: Any) -> Any:
    """The same values, behind a barrier, so that norm and sum see the same numbers.

    Without the barrier the compiler may compute a bfloat16 gradient twice, once without rounding
    it. The norm would then be that of another gradient than the one that is summed.
    """
    # Leaf by leaf: a joint barrier would give all leaves the manual axes of each.
    return jax.tree.map(jax.lax.optimization_barrier, values)


def _readings_rounded_once(plan: ClipPlan, readings: Sequence[TapReading]) -> list[TapReading]:
    """As `_rounded_once`. Where the compiler may split a loop's layers, in the order of the loop.

    Its layers are then read one by one (`slices.py`), and reordering them would copy all of them.
    """
    looped = {use.path for tap in plan.taps for use in tap.uses if use.loops}
    if on_one_device():
        looped = set()
    pairs = zip(plan.readings, readings, strict=True)
    return [
        layers_first(_rounded_once(layers_first(x))) if path in looped else _rounded_once(x)
        for path, x in pairs
    ]


def _contiguous(gradient: jax.Array) -> jax.Array:
    """As `_rounded_once`. On a single CPU device, also laid out example by example.

    A scan stacks gradients layer by layer. Norm and sum would each reorder them.
    """
    alone = on_one_device() and jax.default_backend() == "cpu"
    if not alone or gradient.ndim < 3 or explicit_sharding(gradient) is not None:
        return _rounded_once(gradient)
    rows = gradient.reshape(gradient.shape[0], math.prod(gradient.shape[1:]))
    return _rounded_once(rows).reshape(gradient.shape)


def _materialised_sum(task: Task, gradient: Any, factor: Any, keep: Any) -> jax.Array:
    """The sum over examples of `factor * gradient`, in float32 or wider, or on the integer grid."""
    if task.clip.grid_scale is None:
        if keep is None:
            return weighted_rows(factor, gradient)
        return weighted_rows_of(keep, factor, gradient)
    dtype = precision.accumulation_dtype(gradient.dtype, factor.dtype)
    weighted = _along(factor, gradient).astype(dtype) * mask_examples(keep, gradient).astype(dtype)
    return jnp.sum(on_grid(weighted, task.clip.norms[0], task.clip.grid_scale), axis=0)


def _along(factor: jax.Array, like: jax.Array) -> jax.Array:
    """`factor` (B,) shaped to multiply `like` (B, ...)."""
    return jnp.expand_dims(factor, tuple(range(1, like.ndim)))
