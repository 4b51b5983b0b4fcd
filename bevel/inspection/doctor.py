"""Warn of what goes wrong on a mesh in silence: in time, memory, rounding, or privacy."""

from collections.abc import Sequence
from typing import Any

from bevel.inspection.checks.communication import gathered_weights, narrow_sums, random_numbers
from bevel.inspection.checks.constraints import costly_constraints
from bevel.inspection.checks.early_sums import early_sums
from bevel.inspection.checks.placement import moved_parameters, replicated_arrays
from bevel.inspection.compiled_step import Limits, compile_step
from bevel.inspection.findings import Diagnosis, worst_first

CHECKS = {
    "early sum": early_sums,
    "gathered weight": gathered_weights,
    "replicated array": replicated_arrays,
    "costly constraint": costly_constraints,
    "random numbers": random_numbers,
    "narrow sum": narrow_sums,
    "moved parameter": moved_parameters,
}


def doctor(
    function: Any,
    *args: Any,
    mesh: Any = None,
    argnums: int | Sequence[int] = 0,
    large: int = Limits.large,
    **kwargs: Any,
) -> Diagnosis:
    """Examines a step for its arguments, and says what is wrong, where, and what to write instead.

    Nothing is run: the step is traced and compiled, and again without its sharding constraints if
    it has some (at most ten times). Arguments may be `jax.ShapeDtypeStruct`s with shardings.

    Args:
      function: the step, jitted or not.
      args, kwargs: as for a call.
      mesh: whose axes to name; without it, the mesh of the arguments.
      argnums: the arguments that hold parameters and optimizer state. What else there is counts as
        data: the mesh axes that split its leading dimension carry the batch.
      large: from how many bytes on an array should not be whole on every device.

    | problem | severity |
    | --- | --- |
    | early sum: a per-example norm is taken after a sum over devices | error |
    | gathered weight: a split parameter is gathered in every step | warning, or note (batch axes) |
    | replicated array: a large array is whole on every device | warning |
    | costly constraint: without it the step is cheaper, and nothing is dearer | warning |
    | random numbers: drawn numbers are communicated | warning |
    | narrow sum: devices sum in less than float32 | warning, or note (other axes) |
    | moved parameter: the new value lies elsewhere than the old | warning |

    A program without these has no findings. A finding is about this program on this mesh with this
    compiler: other shapes may differ.
    """
    limits = Limits(large=large)
    step = compile_step(function, args, kwargs, mesh, argnums, limits)
    findings = [finding for check in CHECKS.values() for finding in check(step)]
    return Diagnosis(worst_first(findings), step.report)
