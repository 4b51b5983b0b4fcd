"""How the batches of a run are padded, so that few programs are compiled."""

import dataclasses
import math
from typing import Any

from bevel.batch_selection import PaddedSizes
from bevel.checks import positive_number, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPExecutionPlan


@dataclasses.dataclass(frozen=True)
class PadToMultiple:
    """Pads every batch to the next multiple of `multiple`, and compiles a program for each size.

    The programs of new sizes are compiled during the run. By default, bevel pads to a few sizes
    instead, which it compiles ahead, and which depend on no drawn batch. Pads to multiples if the
    expected batch size is not known.
    """

    multiple: int = 32

    def __post_init__(self) -> None:
        why = "Every row of padding takes as much time as an example."
        whole_number("multiple", self.multiple, 1, 2**24, why)

    def sizes(self, plan: DPExecutionPlan, parts: int) -> PaddedSizes:
        """The padded sizes for a mesh that splits a batch into `parts`."""
        multiple = math.lcm(self.multiple, parts, plan.flags.microbatch_size or 1)
        expected = plan.expected_batch_size or 1
        return _Multiples((math.ceil(expected / multiple) * multiple,), multiple)


@dataclasses.dataclass(frozen=True)
class AutotuneMicrobatch(PadToMultiple):
    """Pads to multiples, and takes each batch in the largest microbatches that fit into `memory`.

    The size is chosen from shapes while a step is compiled, by `clipped_grad(memory=...)`; no step
    is run for it. Leave out `PerformanceFlags.microbatch_size`.

    Attributes:
      memory: an int is a limit on temporary bytes per device, a float one in multiples of the
        temporaries of `jax.grad` for the whole batch.
    """

    memory: int | float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        hint = "an int (bytes of temporaries per device) or a float (times those of jax.grad)"
        positive_number("memory", self.memory, hint)


class _Multiples(PaddedSizes):
    """All multiples; `sizes` holds the one to compile ahead."""

    def size_for(self, batch_size: int) -> int:
        return max(1, -(-batch_size // self.multiple)) * self.multiple


def memory_option(strategy: Any, plan: DPExecutionPlan) -> dict[str, Any]:
    """The options of `clipped_grad` that a strategy sets."""
    if not isinstance(strategy, AutotuneMicrobatch):
        return {}
    if plan.flags.microbatch_size is not None:
        raise FixArgumentsError(
            f"AutotuneMicrobatch chooses the microbatch size, but the flags have microbatch_size="
            f"{plan.flags.microbatch_size}: leave it out, or use PadToMultiple."
        )
    return {"memory": strategy.memory}


def padded_sizes_of(
    plan: DPExecutionPlan, strategy: PaddedSizes | PadToMultiple | None, parts: int, count: int
) -> PaddedSizes:
    """The sizes that a trainer pads to: those asked for, or `count` sizes of the plan's choice."""
    if isinstance(strategy, PaddedSizes):
        return strategy
    if strategy is None and plan.expected_batch_size is not None:
        return plan.padded_sizes(multiple=parts, count=count)
    return (strategy or PadToMultiple()).sizes(plan, parts)
