"""Find silent problems of a step on a mesh: lost time, memory, precision or privacy."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.sharding import AbstractMesh, Mesh

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
    function: Callable[..., Any],
    *args: Any,
    mesh: Mesh | AbstractMesh | None = None,
    argnums: int | Sequence[int] = 0,
    large: int = Limits.large,
    **kwargs: Any,
) -> Diagnosis:
    """Checks a step on a mesh, and reports what is wrong, on which line, and how to fix it.

    The step is traced and compiled but not run. If it has sharding constraints, it is compiled
    again without them (at most ten times). Arguments may be `jax.ShapeDtypeStruct`s with shardings.

    Args:
      function: the step, jitted or not.
      args, kwargs: the arguments of the step.
      mesh: the mesh whose axes to name; by default that of the arguments.
      argnums: the arguments that hold parameters and optimizer state. All others are data: the
        mesh axes that split their leading dimension carry the batch.
      large: arrays of at least this many bytes should not be replicated on every device.

    | problem | severity |
    | --- | --- |
    | early sum: a per-example norm is computed after a sum over devices | error |
    | gathered weight: a split parameter is gathered in every step | warning; note on batch axes |
    | replicated array: a large array is replicated on every device | warning |
    | costly constraint: without it, some costs fall and none rise | warning |
    | random numbers: random numbers are sent between devices | warning |
    | narrow sum: devices sum in less than float32 | warning; note on other axes |
    | moved parameter: the new value has another sharding than the old | warning |

    A step without these problems has no findings. Findings hold for this program, mesh and
    compiler; they may differ for other shapes.
    """
    limits = Limits(large=large)
    step = compile_step(function, args, kwargs, mesh, argnums, limits)
    findings = [finding for check in CHECKS.values() for finding in check(step)]
    return Diagnosis(worst_first(findings), step.report)
