"""`ClipPlan`: how each norm is computed and why, what is materialised, clip groups, mesh layout.

`engine.plan_call` makes it once, before anything is computed. It is what the engine runs, what
`bevel.explain` prints and what tests check.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from bevel.clipping.accumulate.bounded_sums import rounding_of_bounds
from bevel.clipping.accumulate.clip_groups import ClipGroups
from bevel.clipping.accumulate.low_memory import ReadNorm, can_recompute
from bevel.clipping.arguments import Leaves
from bevel.clipping.choose import NormChoice, choose
from bevel.clipping.memory import Footprint, MemoryPlan
from bevel.clipping.norms import gram
from bevel.clipping.norms.registry import SEPARATE
from bevel.clipping.options import HOLDING, Task
from bevel.clipping.program.example_loops import ExampleLoop, example_loops
from bevel.clipping.program.example_rows import ExampleRows
from bevel.clipping.program.memory_estimate import bytes_of
from bevel.clipping.program.trace import ExampleFunction, TracedExample
from bevel.clipping.uses.boundaries import Boundary, find_boundaries
from bevel.clipping.uses.find import Use, find_uses, outside_remats, without_shared_terms
from bevel.clipping.uses.shared_terms import SharedTerm
from bevel.clipping.uses.taps import (
    HoldValues,
    TappedParameter,
    TapReader,
    TapReading,
    differentiate,
)
from bevel.clipping.uses.views import is_one_slice_per_step
from bevel.precision import matmul_precision
from bevel.sharding.axes import MeshLayout, constraints


class ExampleOutputs(NamedTuple):
    """What the program returns for one example. Batching adds a leading example axis."""

    value: Any
    aux: list[Any]
    contribution: Any  # materialised gradients, or the output of clipped_fun
    readings: list[TapReading]  # one per tapped equation, then one per shared term


@dataclasses.dataclass(frozen=True)
class ClipPlan:
    """Every decision about one call of a clipped function, made before anything is computed."""

    layout: MeshLayout
    batch_pieces: int  # into how many equal pieces the mesh splits the batch
    loss: TracedExample  # the user's function of one example
    arguments: Leaves  # the types that it was traced with
    choices: Sequence[NormChoice]  # one per parameter
    taps: Sequence[TappedParameter]
    boundaries: Sequence[Boundary]  # the remats that a second pass differentiates again
    readings: Sequence[Any]  # paths of tapped equations, then shared terms, paths of boundaries
    example: Callable[[Leaves], ExampleOutputs]  # the differentiated function of one example
    gradient: TracedExample  # the same, traced
    out_tree: Any
    aux_tree: Any
    like_params: bool  # the result has the structure of the parameters
    groups: ClipGroups
    memory: MemoryPlan = dataclasses.field(default_factory=MemoryPlan)

    @property
    def materialised(self) -> list[int]:
        """The leaves of the result whose gradients exist for each example."""
        tapped = {tap.param for tap in self.taps}
        return [leaf for leaf in range(self.out_tree.num_leaves) if leaf not in tapped]

    @property
    def rows_per_example(self) -> int:
        """The most rows with which one example enters a tapped product."""
        return max((tap.rows for tap in self.taps), default=1)

    @property
    def example_loops(self) -> list[ExampleLoop]:
        """What the differentiated program runs one example at a time."""
        first = len(self.arguments.params)
        last = first + len(self.arguments.batch) + len(self.arguments.keys)
        program = self.gradient.jaxpr
        return example_loops(program, program.jaxpr.invars[first:last])

    def memory_of(self, param: int) -> str:
        """What is in memory until the coefficients are known.

        'materialised': the per-example gradients. 'held': the activations and gradients at the
        taps. 'recomputed': neither, because a second pass computes them again.
        """
        for tap in self.taps:
            if tap.param == param and tap.way != "form":
                return "recomputed" if tap.recompute else "held"
        return "materialised"

    @property
    def bytes_of_sums(self) -> int:
        """Bytes of the sum over a microbatch that exist at a time, in float32.

        On one device the leaves are summed one after the other, and each is added to the sums of
        the earlier microbatches at once. A GPU's products add to their result in place.
        """
        sizes = [4 * math.prod(param.shape) for param in self.arguments.params]
        if jax.device_count() > 1:
            return sum(sizes)
        products = set[int]()
        if jax.default_backend() == "gpu":
            single = [tap for tap in self.taps if len(tap.uses) == 1 and not tap.recompute]
            products = {tap.param for tap in single if not tap.uses[0].sizes.looked_up}
        return max((n for i, n in enumerate(sizes) if i not in products), default=0)

    @property
    def bytes_of_gathered(self) -> int:
        """Bytes of gathered parameters, by step of their loops, and of the largest gradient.

        For parameters that are sharded over the batch axes. A device sums a gradient over its own
        examples in full, before it is reduced and split.
        """
        steps = {
            tap.param: math.prod(n for kind, n in tap.uses[0].loops if kind == SEPARATE)
            for tap in self.taps
        }
        own = [
            math.prod(param.shape) * 4 // steps.get(i, 1)
            for i, param in enumerate(self.arguments.params)
        ]
        return sum(own) + max(own, default=0)

    def _bytes_of_copies(self, tap: TappedParameter) -> int:
        """Bytes for one example: scaled copies of its values, and what norms form from them."""
        if tap.recompute:
            return 0
        total = 0
        for use in tap.uses:
            separate, rows, left, right, *_ = use.sizes
            if self.layout.spread and is_one_slice_per_step(use.view):
                separate //= use.loops[0][1]  # layer by layer (`slices.py`)
            copied = 4 * rows * (left + right)
            formed = {"gram": 4 * 2 * rows**2 * self.layout.pieces, "product": 4 * left * right}
            aval: Any = use.eqn.outvars[0].aval
            if tap.way == "gram" and gram.kernel_takes(rows, matmul_precision(aval.dtype)):
                # Nothing is formed, and only the scaled side is copied.
                copied, formed = aval.dtype.itemsize * rows * min(left, right), {}
            total += separate * (copied + formed.get(tap.way, 0))
        return total

    def footprint(self, grad: Footprint) -> Footprint:
        """The estimated temporaries. A second pass takes those of `jax.grad`."""
        # The norms and sums of one parameter at a time make copies of its values.
        copies = max((self._bytes_of_copies(tap) for tap in self.taps), default=0)
        held = copies + sum(map(bytes_of, self.gradient.jaxpr.out_avals))
        own = Footprint.of(self.gradient, self.arguments, held)
        again = any(tap.recompute for tap in self.taps)
        return dataclasses.replace(own, least=grad if again else None)


def choose_norms(
    task: Task,
    loss: TracedExample,
    arguments: Leaves,
    layout: MeshLayout,
    paths: Sequence[str],
    mode: str,
) -> list[NormChoice]:
    """How the norm of each parameter's gradient is computed, and why."""
    if not task.gradient:
        return []
    reason = task.needs_whole_gradients
    if reason:
        return [NormChoice(i, "keep", {}, None, why=reason) for i in range(len(paths))]
    found = find_uses(loss.jaxpr, len(arguments.params), len(arguments.constants))
    if layout.manual or layout.explicit_mesh is not None:
        found = without_shared_terms(found)
    if mode in HOLDING:
        found = outside_remats(found)
    placed = layout.explicit_mesh is not None or bool(constraints(loss.jaxpr.jaxpr))
    return choose(found, arguments.params, task.speed.norms, paths, placed)


def tap_parameters(
    choices: Sequence[NormChoice], loss: TracedExample, arguments: Leaves, mode: str
) -> tuple[list[TappedParameter], list[Boundary]]:
    """The parameters whose gradients are read at taps, and the remats that are run again.

    All other parameters are materialised by JAX.
    """
    chosen = [tapped_parameter(choice, arguments.params[choice.param]) for choice in choices]
    taps = [tap for tap in chosen if tap is not None]
    boundaries: list[Boundary] = []
    if mode == "boundaries":
        first, last = len(arguments.params), len(arguments.flat()) - len(arguments.constants)
        known = [not first <= i < last for i in range(len(arguments.flat()))]
        boundaries = find_boundaries(loss.jaxpr.jaxpr, known)
    # An equation that combines two parameters with an example is read once, for both of them.
    read = collections.Counter(use.path for tap in taps for use in tap.uses)
    alone = [all(read[use.path] == 1 for use in tap.uses) for tap in taps]
    taps = [
        dataclasses.replace(tap, recompute=own and _recomputes(tap, mode, boundaries))
        for tap, own in zip(taps, alone, strict=True)
    ]
    paths = [use.path for tap in taps if tap.recompute for use in tap.uses]
    return taps, [b for b in boundaries if any(b.contains(path) for path in paths)]


def tapped_parameter(choice: NormChoice, aval: Any) -> TappedParameter | None:
    """The taps of a parameter, or None if its gradient is materialised by JAX."""
    if choice.way == "keep" or choice.uses is None:
        return None
    rows = [use.sizes.rows for use in choice.uses]
    return TappedParameter(
        choice.param,
        tuple(aval.shape),
        choice.uses,
        choice.way,
        sum(rows) if choice.overlapping else max(rows),
        choice.overlapping,
        shared_terms=choice.shared_terms,
    )


def _recomputes(tap: TappedParameter, mode: str, boundaries: Sequence[Boundary]) -> bool:
    """Whether a second pass computes the values of a tap again."""
    if tap.way == "form" or not can_recompute(tap):
        return False
    inside = all(any(b.contains(use.path) for b in boundaries) for use in tap.uses)
    return mode == "low" or (mode == "boundaries" and inside)


def differentiated(
    task: Task,
    function: ExampleFunction,
    loss: TracedExample,
    taps: Sequence[TappedParameter],
    boundaries: Sequence[Boundary],
    layout: MeshLayout,
    mode: str,
) -> tuple[Callable[[Leaves], ExampleOutputs], list[Any]]:
    """The differentiated function of one example, and what each of its readings is."""
    # One equation is read once, however many parameters it is a use of.
    margin = 2 * rounding_of_bounds(sum(tap.recompute for tap in taps))
    reads: dict[Any, tuple[Use, TapReader]] = {
        use.path: (use, ReadNorm(tap.way, margin) if tap.recompute else HoldValues())
        for tap in taps
        for use in tap.uses
    }
    terms: list[SharedTerm] = list(dict.fromkeys(term for tap in taps for term in tap.shared_terms))
    tapped = {tap.param for tap in taps}

    def example(leaves: Leaves) -> ExampleOutputs:
        if not task.gradient:
            value, aux = function(leaves)
            return ExampleOutputs(None, jax.tree.leaves(aux), value, [])
        readings: list[TapReading] = []
        if task.speed.engine == "vmap":
            loss_of = lambda params: function(leaves._replace(params=params))  # noqa: E731
            (value, aux), gradients = jax.value_and_grad(loss_of, has_aux=True)(leaves.params)
        else:
            others = [i for i in range(len(leaves.params)) if i not in tapped]
            outputs, gradients, readings = differentiate(
                loss.jaxpr,
                list(reads.values()),
                others,
                leaves.flat(),
                terms,
                boundaries,
                save_products=mode in HOLDING,
                rows=ExampleRows.of(leaves.batch, layout),
            )
            value, aux = jax.tree.unflatten(loss.out_tree, outputs)
        contribution: Any = gradients
        if task.transform is not None:
            # In the dtypes of the parameters, as jax.grad gives them.
            pairs = zip(gradients, leaves.params, strict=True)
            cast = [gradient.astype(param.dtype) for gradient, param in pairs]
            contribution = task.transform(jax.tree.unflatten(function.call.result, cast))
        return ExampleOutputs(value, jax.tree.leaves(aux), contribution, readings)

    return example, [*reads, *terms, *(boundary.path for boundary in boundaries)]
