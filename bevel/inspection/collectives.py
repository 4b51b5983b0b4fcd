"""What a compiled step moves between devices: every collective, and what it costs.

    step = jax.jit(step_function).lower(*args).compile()
    print(inspect_step(step))

All figures are of one device and one step. The text of the program is read, so they hold for the
backend that compiled it: a CPU's compiler partitions a program as a GPU's does, but fuses, and
overlaps, less.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding

from bevel.errors import FixArgumentsError
from bevel.inspection import hlo, hlo_costs
from bevel.inspection.replica_groups import (
    axes_of_groups,
    axes_of_pairs,
    parse_groups,
    parse_pairs,
)
from bevel.inspection.step_report import Collective, Memory, StepReport
from bevel.sharding.source_lines import SourceLine, SourceLines

KINDS = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"}
KINDS |= {"collective-permute", "collective-broadcast", "send"}


def inspect_step(compiled: Any, mesh: Any = None, branch: int | None = None) -> StepReport:
    """Every collective of a compiled step, with kind, bytes, mesh axes, times and line.

    Args:
      compiled: `jax.jit(step).lower(*args).compile()`, or the text of one.
      mesh: whose axes to name; without it, the mesh of the step's arguments and results.
      branch: which branch of every conditional counts, -1 for the last. Without it, the one that
        sends most.

    `bytes` is the size, on one device, of the array that is reduced, gathered or passed on: the
    larger side, so a reduce-scatter counts as the all-reduce it is a part of. `sent` is what a
    device sends for it around a ring: twice (n-1)/n of `bytes` for an all-reduce, (n-1)/n for
    gathers, scatters and all-to-alls, all for a permute.

    Of an asynchronous pair, `-start` is counted, by its result alone: the operands and contexts
    that stand in its tuple are not moved. Fused and wrapped forms are found inside their bodies.
    """
    text = compiled if isinstance(compiled, str) else _text_of(compiled)
    module = hlo.parse(text)
    sizes = _mesh_sizes(mesh, compiled)
    devices = _device_count(text)
    lines = SourceLines(text)

    def read(run: hlo.ComputationRun) -> Collective | None:
        return _collective(module, run, lines, sizes, devices)

    def weight(run: hlo.ComputationRun) -> float:
        found = read(run)
        return run.times * (found.sent if found else 0.0)

    runs = hlo.runs(module, weight, branch)
    flops, unread = hlo_costs.flops(runs)
    return StepReport(
        [found for found in map(read, runs) if found],
        dict(sizes) if sizes else None,
        devices,
        flops,
        _compiler_flops(compiled),
        unread,
        hlo_costs.traffic(module, runs),
        _memory_of(compiled),
    )


def _text_of(compiled: Any) -> str:
    if not hasattr(compiled, "memory_analysis") or not hasattr(compiled, "as_text"):
        raise FixArgumentsError(
            f"inspect_step takes a compiled step, and got {type(compiled).__name__}: write "
            "`inspect_step(jax.jit(step).lower(*args).compile())`."
        )
    return compiled.as_text()


def _mesh_sizes(mesh: Any, compiled: Any) -> Mapping[str, int] | None:
    """The axes to name: of the mesh that was given, or else of arguments and results."""
    if mesh is not None:
        return mesh.shape
    found: Mapping[str, int] | None = None
    for name in ("input_shardings", "output_shardings"):
        for sharding in jax.tree.leaves(getattr(compiled, name, ())):
            if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
                shape = sharding.mesh.shape
                found = shape if found is None or len(shape) > len(found) else found
    return found


def _device_count(text: str) -> int:
    head = text[: text.find("\n")]
    counts = [re.search(rf"{name}=(\d+)", head) for name in ("num_partitions", "replica_count")]
    return math.prod(int(count[1]) for count in counts if count)


def _collective(
    module: hlo.Module,
    run: hlo.ComputationRun,
    lines: SourceLines,
    mesh: Mapping[str, int] | None,
    devices: int,
) -> Collective | None:
    """The collective that an instruction is, if it is one."""
    instruction, computation = run.instruction, run.computation
    kind = instruction.opcode.removesuffix("-start")
    if kind not in KINDS or "is_host_transfer=true" in instruction.attributes:
        return None
    operands = [computation.instructions[name] for name in instruction.operands]
    moved = hlo.arrays(_result_of(instruction))
    if kind in ("reduce-scatter", "send"):
        moved = [a for o in operands[: 1 if kind == "send" else None] for a in hlo.arrays(o.shape)]
    pairs = parse_pairs(instruction.attribute("source_target_pairs") or "")
    groups = [[a, b] for a, b in pairs if a != b]
    axes, spans = (axes_of_pairs(pairs, mesh), True) if mesh is not None else (None, True)
    if not pairs and kind != "send":
        groups = parse_groups(_groups_text(instruction), devices)
        if mesh is not None:
            axes, spans = axes_of_groups(groups, mesh)
    size = max(map(len, groups), default=1)
    reducer = instruction.attribute("to_apply")
    reduction = module.computations.get((reducer or "").lstrip("%"))
    metadata = instruction.attribute("metadata") or ""
    operation = re.search(r'op_name="([^"]*)"', metadata)
    return Collective(
        kind=kind,
        dtype=moved[0].dtype,
        shapes=tuple(a.dims for a in moved),
        bytes=sum(a.bytes for a in moved),
        group_size=size,
        axes=axes,
        spans_axes=spans,
        times=run.times,
        trip_counts=run.loops,
        in_branch=run.in_branch,
        is_async=instruction.opcode.endswith("-start"),
        sliced_bytes=(
            hlo_costs.sliced_bytes(module, computation, instruction, size)
            if kind == "all-reduce" and size > 1
            else 0
        ),
        reducer=reduction.root.opcode if reduction else None,
        is_widened=bool(reducer and reducer.endswith("_promoted")),
        line=lines.of(metadata) or _line_of_use(computation, instruction, lines),
        operation=operation[1] if operation else "",
        name=instruction.name,
        operands=instruction.operands,
        computation=computation.name,
    )


def _line_of_use(
    computation: hlo.Computation, instruction: hlo.Instruction, lines: SourceLines
) -> SourceLine | None:
    """Where a value is first used, directly or as part of a tuple.

    What is done to an argument as such, before any use, was written on no line.
    """
    for user in computation.users[instruction.name]:
        line = lines.of(user.attribute("metadata") or "")
        passed_on = user.opcode in ("get-tuple-element", "bitcast", "copy", "fusion")
        if line is None and (passed_on or user.opcode.endswith("-done")):
            line = _line_of_use(computation, user, lines)
        if line is not None:
            return line
    return None


def _result_of(instruction: hlo.Instruction) -> hlo.Shape:
    """The shape of the result, which a `-start` has second in its tuple, behind its operands.

    Older texts give an `all-reduce-start` the shape of its result alone.
    """
    shape = instruction.shape
    if not instruction.opcode.endswith("-start") or isinstance(shape, hlo.HloArray):
        return shape
    if instruction.opcode == "all-reduce-start" and isinstance(shape[0], hlo.HloArray):
        return shape
    return shape[1]


def _groups_text(instruction: hlo.Instruction) -> str:
    """What `replica_groups=` says, up to the next attribute."""
    found = re.search(r"replica_groups=(.*?)(?=, (?!device_ids)\w+=|$)", instruction.attributes)
    return found[1] if found else "{}"


def _compiler_flops(compiled: Any) -> float | None:
    costs = getattr(compiled, "cost_analysis", lambda: None)()
    costs = costs[0] if isinstance(costs, list) else costs
    return float(costs["flops"]) if costs and "flops" in costs else None


def _memory_of(compiled: Any) -> Memory | None:
    found = getattr(compiled, "memory_analysis", lambda: None)()
    if found is None:
        return None
    return Memory(
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
        found.alias_size_in_bytes,
        found.temp_size_in_bytes,
    )
