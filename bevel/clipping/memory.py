"""Chooses how a call bounds its memory: what is held, what is recomputed, and microbatches.

| mode         | what happens                                                       | work        |
| ------------ | ------------------------------------------------------------------ | ----------- |
| bookkeeping  | the values of every tap are held until the coefficients are known  | 3           |
| microbatches | the same, in microbatches that fit                                 | 3           |
| boundaries   | held: inputs and cotangents of each remat; the rest is recomputed  | 6           |
| low          | nothing is held: a second backward pass recomputes everything      | 7           |

Work is in units of one forward pass, beside the norms, which the last two modes compute twice;
`jax.grad` takes 3, or 4 with remat. Where values are held, a remat saves its products with
parameters and recomputes the rest. The clipped sum is additive over microbatches, so all modes give
the same result. Estimates come from shapes alone: the choice never depends on how much memory
happens to be free.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp

from bevel.checks import shown
from bevel.clipping.accumulate.low_memory import TouchValues
from bevel.clipping.arguments import Leaves
from bevel.clipping.options import Task
from bevel.clipping.program import remat
from bevel.clipping.program.memory_estimate import ProgramSteps, bytes_of
from bevel.clipping.program.trace import TracedExample, trace
from bevel.clipping.uses.find import Use, find_uses
from bevel.clipping.uses.taps import differentiate
from bevel.errors import FixArgumentsError
from bevel.sharding.axes import MeshLayout
from bevel.sharding.types import explicit_sharding, mesh_size, spec_axes

if TYPE_CHECKING:
    from bevel.clipping.plan import ClipPlan

# By default, the peak may be this many times that of `jax.grad`, as estimated.
PEAK_BY_DEFAULT = 1.07
# By default, where microbatches would gather parameters again, all values or boundaries are held if
# they take at most this many times its temporaries, as estimated. On meshes, estimates for all
# values are 10 to 50% above what the compiler reports, so this is about twice in both cases.
HELD_BY_DEFAULT = {"bookkeeping": 2.3, "boundaries": 2.0}
# By default, temporaries of at most this many bytes per device are never worth more work.
NEGLIGIBLE = 2**20

REASONS = {
    "bookkeeping": "the least work, and parameters are gathered no more often than by jax.grad",
    "microbatches": "the least work: no product with parameters is recomputed",
    "boundaries": "the least work that fits, without gathering parameters once per microbatch",
    "low": "the only mode that fits",
}


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """How one call bounds its memory. Estimates are temporary bytes per device."""

    mode: str = "bookkeeping"
    microbatch_size: int | None = None  # examples, on all devices together
    why: str = "no jax.checkpoint"
    has_remat: bool = False
    estimates: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def passes(self) -> int:
        """Forward and backward passes over activations, in units of one forward pass."""
        return {"boundaries": 5, "low": 6 if self.has_remat else 4}.get(self.mode, 2)

    def __str__(self) -> str:
        size = (
            "" if self.microbatch_size is None else f", {self.microbatch_size} examples at a time"
        )
        known = ", ".join(f"{name} {n / 2**20:.1f} MiB" for name, n in self.estimates.items())
        return f"memory: {self.mode}{size} ({self.why})" + (
            f"; estimated temporaries per device: {known}" if known else ""
        )


@dataclasses.dataclass(frozen=True)
class Footprint:
    """The estimated temporaries of a program of one example that is run for many."""

    steps: ProgramSteps
    held: int  # bytes of each example's results
    gathered: int = 0  # bytes of parameters from other devices, however many examples run
    least: "Footprint | None" = None  # that of a program that runs afterwards

    @classmethod
    def of(cls, program: TracedExample, arguments: Leaves, held: int = 0) -> "Footprint":
        first = len(arguments.params)
        last = first + len(arguments.batch) + len(arguments.keys)
        flags = [first <= i < last for i in range(len(program.jaxpr.jaxpr.invars))]
        return cls(ProgramSteps(program.jaxpr.jaxpr, flags), held)

    def bytes(self, examples: int) -> int:
        running = self.steps.temporaries(examples)
        if self.least is not None:
            running = max(running, self.least.bytes(examples))
        return running + self.held * examples + self.gathered


def _grad_footprint(loss: TracedExample, arguments: Leaves) -> Footprint:
    """The estimate for `jax.grad`, from a backward pass in which no gradient is formed."""
    found = find_uses(loss.jaxpr, len(arguments.params), len(arguments.constants))
    own = [use for uses in found.values() for use in uses or () if isinstance(use, Use)]
    reads = [(use, TouchValues()) for use in {use.path: use for use in own}.values()]
    others = [param for param, uses in found.items() if uses is None]

    def backward(leaves: Leaves) -> list[Any]:
        _, gradients, readings = differentiate(loss.jaxpr, reads, others, leaves.flat())
        return [*map(jnp.sum, gradients), *(reading.g for reading in readings)]

    return Footprint.of(trace(backward, arguments, loss.mesh), arguments)


def _may_regather(layout: MeshLayout, params: Sequence[Any]) -> bool:
    """Whether parameters may be sharded over batch axes, so that each microbatch gathers them.

    Under `jit` on Auto axes, the type of a parameter names its mesh but not its sharding.
    """
    if layout.manual:
        return False
    for i, param in enumerate(params):
        known = explicit_sharding(param) or (layout.params[i] if layout.params else None)
        if known is not None:
            named = {axis for entry in known.spec.partitions for axis in spec_axes(entry)}
            if named & set(layout.batch_axes):
                return True
        elif mesh_size(param) > 1:
            return True
    return False


def plan_within_memory(
    task: Task,
    loss: TracedExample,
    layout: MeshLayout,
    leaves: Leaves,
    planned: "Callable[[str], ClipPlan]",
) -> "ClipPlan":
    """The plan of the first mode that fits the memory that the caller allows.

    `planned` makes the plan of a mode.
    """
    memory, given = task.speed.memory, task.speed.microbatch_size
    remats = list(remat.remats(loss.jaxpr.jaxpr))
    has_remat = bool(remats) and not any(map(remat.offloads, remats))
    if not task.gradient or task.needs_whole_gradients or (memory == "auto" and not has_remat):
        chosen = MemoryPlan("bookkeeping", given, has_remat=has_remat)
        return dataclasses.replace(planned("bookkeeping"), memory=chosen)
    if isinstance(memory, str) and memory not in ("auto", "microbatches"):
        chosen = MemoryPlan(memory, given, "asked for", has_remat)
        return dataclasses.replace(planned(memory), memory=chosen)

    regathers = _may_regather(layout, leaves.params)
    modes = _modes_to_try(memory, has_remat, regathers)
    estimates = dict[str, int]()
    grad: Footprint | None = None
    for mode in modes:
        plan = planned(mode)
        grad = grad or _grad_footprint(loss, plan.arguments)
        fit = _fit(plan, grad, leaves, memory, mode, given, regathers)
        estimates |= {"jax.grad": fit.grad, mode: fit.bytes}
        last = mode == modes[-1] and isinstance(memory, str)
        if fit.within or last:
            why = "asked for" if memory == mode else REASONS[mode]
            chosen = MemoryPlan(mode, fit.microbatch_size, why, has_remat, estimates)
            return dataclasses.replace(plan, memory=chosen)
    raise _no_mode_fits(memory, estimates)


class _Fit(NamedTuple):
    """The largest microbatches of one mode, and whether they are within the limit."""

    within: bool
    microbatch_size: int | None  # examples, on all devices together; None: the whole batch
    bytes: int  # estimated temporaries per device
    grad: int  # those of `jax.grad`, for the whole batch


def _fit(
    plan: "ClipPlan",
    grad: Footprint,
    leaves: Leaves,
    memory: str | int | float,
    mode: str,
    given: int | None,
    regathers: bool,
) -> _Fit:
    """How much of the batch a mode can take at once; one example per device if nothing fits."""
    shards = _batch_shards(plan, leaves)
    local = max(1, leaves.batch[0].shape[0] // shards)
    gathered = plan.bytes_of_gathered if regathers else 0
    footprint = dataclasses.replace(plan.footprint(grad), gathered=gathered)
    of_grad = grad.bytes(local) + gathered
    limit = _limit(memory, mode, of_grad, plan)
    if given is None and mode == "bookkeeping":
        most = local if footprint.bytes(local) <= limit else None
    elif given is None:
        most = _largest_microbatch(footprint, local, limit, plan.bytes_of_sums)
    else:
        own = min(local, max(1, given // shards))
        sums = plan.bytes_of_sums if own < local else 0
        most = own if footprint.bytes(own) + sums <= limit else None
    examples = most or (local if mode == "bookkeeping" else 1)
    needed = footprint.bytes(examples) + (plan.bytes_of_sums if examples < local else 0)
    size = given if most == local or given is not None else examples * shards
    return _Fit(most is not None, size, needed, of_grad)


def _no_mode_fits(memory: str | int | float, estimates: Mapping[str, int]) -> FixArgumentsError:
    least = min(bytes for mode, bytes in estimates.items() if mode != "jax.grad")
    return FixArgumentsError(
        f"memory={shown(memory)} allows less than this call needs, about {least:,} bytes of "
        f"temporaries per device (jax.grad: {estimates['jax.grad']:,}). Pass memory={least}, or "
        "use more devices."
    )


def _batch_shards(plan: "ClipPlan", leaves: Leaves) -> int:
    """Into how many shards the batch is split; all devices of a mesh where that is unknown."""
    if plan.layout.manual or plan.layout.batch_axes:
        return plan.batch_pieces
    return math.gcd(leaves.batch[0].shape[0], *map(mesh_size, leaves.batch))


def _modes_to_try(memory: str | int | float, has_remat: bool, regathers: bool) -> list[str]:
    """The modes that an option allows, most wanted first."""
    if memory == "microbatches":
        return ["microbatches"]
    if not has_remat:
        return ["microbatches", "low"]
    if not regathers:
        return ["microbatches", "boundaries", "low"]
    modes = ["bookkeeping", "boundaries", "low"]
    return modes if memory == "auto" else [*modes, "microbatches"]


def _limit(memory: str | int | float, mode: str, grad: int, plan: "ClipPlan") -> float:
    """The temporary bytes that a mode may take, where `jax.grad` takes `grad`."""
    if isinstance(memory, float):
        return memory * grad
    if isinstance(memory, int):
        return memory
    if mode in HELD_BY_DEFAULT:
        return max(HELD_BY_DEFAULT[mode] * grad, NEGLIGIBLE)
    outside = 2 * sum(bytes_of(x) for x in plan.arguments.params)  # arguments and results
    return max(PEAK_BY_DEFAULT * (grad + outside) - outside, NEGLIGIBLE)


def _largest_microbatch(
    footprint: Footprint, examples: int, limit: float, bytes_of_sums: int
) -> int | None:
    """The most examples that fit at once and divide the batch, or None.

    Microbatches also hold the sum of one of them.
    """
    if footprint.bytes(examples) <= limit:
        return examples
    for pieces in range(2, examples + 1):
        size, rest = divmod(examples, pieces)
        if rest == 0 and footprint.bytes(size) + bytes_of_sums <= limit:
            return size
    return None
