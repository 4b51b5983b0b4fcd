"""`ClipPlan`: how each norm is computed and why, what is materialised, clip groups, mesh layout.

`engine.plan_call` makes it once, before anything is computed. It is what the engine runs, what
`bevel.explain` prints and what tests check.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from bevel.clipping.accumulate.clip_groups import ClipGroups
from bevel.clipping.accumulate.low_memory import ReadNorm, can_recompute
from bevel.clipping.arguments import Leaves
from bevel.clipping.choose import NormChoice, choose
from bevel.clipping.options import Task
from bevel.clipping.program.example_loops import ExampleLoop, example_loops
from bevel.clipping.program.trace import ExampleFunction, TracedExample
from bevel.clipping.uses.find import Use, find_uses, without_shared_terms
from bevel.clipping.uses.shared_terms import SharedTerm
from bevel.clipping.uses.taps import (
    HoldValues,
    TappedParameter,
    TapReader,
    TapReading,
    differentiate,
)
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
    readings: Sequence[Any]  # the path of each tapped equation, then the shared terms
    example: Callable[[Leaves], ExampleOutputs]  # the differentiated function of one example
    gradient: TracedExample  # the same, traced
    out_tree: Any
    aux_tree: Any
    like_params: bool  # the result has the structure of the parameters
    groups: ClipGroups

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

        'kept': the materialised per-example gradients. 'held': the activations and gradients at
        the taps. 'again': neither, because a second backward pass recomputes them.
        """
        for tap in self.taps:
            if tap.param == param and tap.way != "form":
                return "again" if tap.recompute else "held"
        return "kept"


def choose_norms(
    task: Task, loss: TracedExample, arguments: Leaves, layout: MeshLayout, paths: Sequence[str]
) -> list[NormChoice]:
    """How the norm of each parameter's gradient is computed, and why."""
    if not task.gradient:
        return []
    reason = _needs_whole_gradients(task)
    if reason:
        return [NormChoice(i, "keep", {}, None, why=reason) for i in range(len(paths))]
    found = find_uses(loss.jaxpr, len(arguments.params), len(arguments.constants))
    if layout.manual or layout.explicit_mesh is not None:
        found = without_shared_terms(found)
    placed = layout.explicit_mesh is not None or bool(constraints(loss.jaxpr.jaxpr))
    return choose(found, arguments.params, task.speed.norms, paths, placed)


def _needs_whole_gradients(task: Task) -> str:
    """Which option needs every example's gradient as a whole, or an empty string."""
    if task.transform is not None:
        return "pre_clipping_transform needs it"
    if task.clip.grid_scale is not None:
        return "grid_scale needs it"
    return "engine='vmap'" if task.speed.engine == "vmap" else ""


def tap_parameters(
    task: Task, choices: Sequence[NormChoice], arguments: Leaves, layout: MeshLayout
) -> list[TappedParameter]:
    """The parameters whose gradients are read at taps. The others are materialised by JAX."""
    taps = [tapped_parameter(choice, arguments.params[choice.param]) for choice in choices]
    return [
        dataclasses.replace(tap, recompute=_recomputes(task, tap, layout))
        for tap in taps
        if tap is not None
    ]


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


def _recomputes(task: Task, tap: TappedParameter, layout: MeshLayout) -> bool:
    """Whether a second backward pass computes the values of a tap again.

    By default where the user has a remat, which holding the values would undo.
    """
    in_remat = any(use.in_remat for use in tap.uses)
    wanted = in_remat if task.speed.memory == "auto" else task.speed.memory == "low"
    return tap.way != "form" and wanted and can_recompute(tap) and layout.explicit_mesh is None


def differentiated(
    task: Task,
    function: ExampleFunction,
    loss: TracedExample,
    taps: Sequence[TappedParameter],
) -> tuple[Callable[[Leaves], ExampleOutputs], list[Any]]:
    """The differentiated function of one example, and what each of its readings is."""
    # One equation is read once, however many parameters it is a use of.
    reads: dict[Any, tuple[Use, TapReader]] = {
        use.path: (use, ReadNorm(tap.way) if tap.recompute else HoldValues())
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
                loss.jaxpr, list(reads.values()), others, leaves.flat(), terms
            )
            value, aux = jax.tree.unflatten(loss.out_tree, outputs)
        contribution: Any = gradients
        if task.transform is not None:
            # In the dtypes of the parameters, as jax.grad gives them.
            pairs = zip(gradients, leaves.params, strict=True)
            cast = [gradient.astype(param.dtype) for gradient, param in pairs]
            contribution = task.transform(jax.tree.unflatten(function.call.result, cast))
        return ExampleOutputs(value, jax.tree.leaves(aux), contribution, readings)

    return example, [*reads, *terms]
