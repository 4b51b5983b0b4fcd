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
from bevel.clipping.norms import MeasuredNorm, Norm, materialised_norm, quick_norm
from bevel.clipping.norms.scaling import scale_back
from bevel.clipping.norms.weighting import mask_examples, weighted_rows, weighted_rows_of
from bevel.clipping.options import Task
from bevel.clipping.plan import ClipPlan, ExampleOutputs
from bevel.clipping.uses.shared_terms import derivative, shared_term_gradients
from bevel.clipping.uses.taps import TappedParameter, TapReading
from bevel.sharding.source_lines import keep_line
from bevel.sharding.types import explicit_sharding, on_one_device, varying_axes

# Above this many elements, in the whole batch, norms are first computed in one pass.
ONE_PASS = {"cpu": 2**12, "gpu": 2**22, "tpu": 2**22}


@dataclasses.dataclass(frozen=True)
class ExampleGradients:
    """The gradients of all examples, by leaf: materialised, or as values read at taps."""

    task: Task
    plan: ClipPlan
    materialised: dict[int, Any]
    tapped: dict[int, list[Any]]
    params: Sequence[Any]

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
        return cls(task, plan, contiguous, tapped, params)

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

    def in_one_pass(self, leaf: int) -> bool:
        """Whether the norm of a leaf is first computed without scaling, to read its values once."""
        arrays = jax.tree.leaves(self.values(leaf))
        return sum(x.size for x in arrays) >= one_pass_threshold() and not self.recomputes(leaf)

    def quick_norms(self, leaf: int) -> list[MeasuredNorm]:
        """Norms without scaling, and whether each is valid: no square over- or underflowed."""
        tap = self.tap(leaf)
        if tap is None:
            return [quick_norm(self.materialised[leaf])]
        return self._tapped_norms(tap, self.tapped[leaf], scaled=False)

    def norms(self, leaves: Collection[int]) -> dict[int, Norm]:
        """Norms with scaling. Leaves that are measured together appear under the first of them."""
        found = dict[int, Norm]()
        for first, *others in self._measured_together(leaves):
            tap = self.tap(first)
            values = self._values_after([first, *others], list(found.values())[-1:])
            if tap is not None:
                parts = self._tapped_norms(tap, values[0], scaled=True)
                found[first] = norm_of_parts([m.norm for m in parts])
            else:
                found[first] = materialised_norm(_concatenated(values) if others else values[0])
        return found

    def _values_after(self, leaves: Sequence[int], earlier: Sequence[Any]) -> list[Any]:
        """The values of leaves, available only after `earlier` are computed.

        Where values are scaled or masked, this lets one copy exist at a time.
        """
        values: list[Any] = [self.tapped.get(i, self.materialised.get(i)) for i in leaves]
        tap = self.tap(leaves[0])
        # A loop over layers copies one layer at a time anyway, and reads values layer by layer.
        by_slice = tap is not None and goes_by_slice(tap, values[0], self.plan.layout)
        small = not self.in_one_pass(leaves[0])
        if self.plan.layout.manual or by_slice or small or not earlier:
            return values
        return jax.lax.optimization_barrier((values, list(earlier)))[0]

    def _measured_together(self, leaves: Collection[int]) -> list[list[int]]:
        """Lists of leaves to measure together, because many small norms take long.

        Only on one device, where concatenating leaves moves nothing, and only leaves of one group
        that are split over the same axes.
        """
        if not on_one_device():
            return [[leaf] for leaf in leaves]
        lists = dict[Any, list[int]]()
        for leaf in leaves:
            gradient = self.materialised.get(leaf)
            key: Any = leaf
            small = gradient is not None and gradient.size <= one_pass_threshold() // 8
            if small and explicit_sharding(gradient) is None:
                key = "small", self.plan.groups.of_leaf[leaf], varying_axes(gradient)
            lists.setdefault(key, []).append(leaf)
        return list(lists.values())

    def sums(
        self,
        leaves: Collection[int],
        factors: Sequence[Any],
        keep: Any,
        exponents: dict[int, jax.Array] | None = None,
    ) -> dict[int, Any]:
        """The weighted sums, where the gradients of a leaf were divided by 2 to its `exponents`.

        With exponents, all values are finite, and a coefficient of 0 excludes an example.
        """
        result = dict[int, Any]()
        finite = exponents is not None
        if finite:
            factors, keep = [mask_examples(keep, factor) for factor in factors], None
        formed = {tap.param: tap.shape for tap in self.plan.taps if tap.way == "form"}
        for leaf in leaves:
            group, tap = self.plan.groups.of_leaf[leaf], self.tap(leaf)
            factor = factors[group]
            if exponents is not None:
                factor = scale_back(factor, exponents[leaf])
            # A CPU's compiler does not gain from this where nothing is masked.
            together = finite and jax.default_backend() == "cpu"
            (values,) = self._values_after([leaf], [] if together else list(result.values())[-1:])
            if tap is None:
                total = _materialised_sum(self.task, values, factor, keep)
                padded = leaf in formed
                result[leaf] = total[tuple(map(slice, formed[leaf]))] if padded else total
            else:
                # Behind a barrier: else a GPU's compiler sums materialised gradients in the kernel
                # that scales the values of all taps, which reaches a third of its bandwidth.
                with keep_line(tap.uses[0].eqn):
                    result[leaf] = self._tapped_sum(tap, values, _rounded_once(factor), keep)
        return result

    def _tapped_norms(
        self, tap: TappedParameter, gradients: list[Any], scaled: bool
    ) -> list[MeasuredNorm]:
        if goes_by_slice(tap, gradients, self.plan.layout):
            return [norm_by_slice(tap, gradients[0], scaled)]
        return tap.norms(gradients, scaled)

    def _tapped_sum(
        self, tap: TappedParameter, gradients: list[Any], factor: jax.Array, keep: Any
    ) -> jax.Array:
        layout = self.plan.layout
        if goes_by_slice(tap, gradients, layout):
            param = self.params[tap.param]
            return weighted_sum_by_slice(tap, gradients[0], factor, keep, param, layout)
        return tap.weighted_sum(gradients, factor, keep)


def one_pass_threshold() -> int:
    """From this many elements on, norms are first computed in one pass."""
    return ONE_PASS.get(jax.default_backend(), ONE_PASS["gpu"])


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
    return jnp.sum(on_grid(weighted, task.clip.grid_scale), axis=0)


def _along(factor: jax.Array, like: jax.Array) -> jax.Array:
    """`factor` (B,) shaped to multiply `like` (B, ...)."""
    return jnp.expand_dims(factor, tuple(range(1, like.ndim)))
