"""List the collectives of a compiled step and what they cost.

    step = jax.jit(step_function).lower(*args).compile()
    print(inspect_step(step))

All figures are for one device and one step. They come from the text of the compiled program, so
they hold for the backend that compiled it: the CPU compiler partitions programs as the GPU compiler
does, but fuses and overlaps less.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from bevel.errors import FixArgumentsError
from bevel.inspection import hlo, hlo_costs
from bevel.inspection.replica_groups import axes_of_groups, parse_groups, parse_pairs
from bevel.inspection.step_report import Collective, Memory, StepReport
from bevel.sharding.source_lines import SourceLine, SourceLines

KINDS = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"}
KINDS |= {"collective-permute", "collective-broadcast", "send"}


def inspect_step(
    compiled: Any, mesh: Mesh | AbstractMesh | None = None, branch: int | None = None
) -> StepReport:
    """Reports every collective of a compiled step: kind, bytes, mesh axes, count and source line.

    Args:
      compiled: `jax.jit(step).lower(*args).compile()`, or its text.
      mesh: the mesh whose axes to name; by default that of the step's arguments and results.
      branch: the branch of every conditional to count, -1 for the last. By default the one that
        sends most.

    `bytes` is the size, on one device, of the larger of input and output, so a reduce-scatter has
    the same `bytes` as an all-reduce of the same array. `sent` is what a device sends around a
    ring: 2 (n-1)/n of `bytes` for an all-reduce, (n-1)/n for gathers, scatters and all-to-alls,
    and all of it for a permute.

    An asynchronous pair is counted once, by the result of its `-start`. The operands and contexts
    in the tuple of the `-start` are not sent. Fused and wrapped collectives are found too.
    """
    is_text = isinstance(compiled, str)
    if not is_text and not (hasattr(compiled, "memory_analysis") and hasattr(compiled, "as_text")):
        raise FixArgumentsError(
            f"inspect_step takes a compiled step, but got {type(compiled).__name__}: write "
            "inspect_step(jax.jit(step).lower(*args).compile())."
        )
    text = compiled if is_text else compiled.as_text()
    module = hlo.parse(text)
    sizes = _mesh_sizes(mesh, compiled)
    devices = _device_count(text)
    lines = SourceLines(text)

    def read(run: hlo.CountedInstruction) -> Collective | None:
        return _collective(module, run, lines, sizes, devices)

    def weight(run: hlo.CountedInstruction) -> float:
        collective = read(run)
        return run.times * (collective.sent if collective else 0.0)

    runs = hlo.runs(module, weight, branch)
    flops, unread = hlo_costs.flops(runs)
    return StepReport(
        [collective for collective in map(read, runs) if collective],
        dict(sizes) if sizes else None,
        devices,
        flops,
        _compiler_flops(compiled),
        unread,
        hlo_costs.traffic(module, runs),
        _memory_of(compiled),
    )


def _mesh_sizes(mesh: Mesh | AbstractMesh | None, compiled: Any) -> Mapping[str, int] | None:
    """The axis sizes of `mesh`, or of the arguments' and results' mesh with the most axes."""
    if mesh is not None:
        return mesh.shape
    sizes: Mapping[str, int] | None = None
    for name in ("input_shardings", "output_shardings"):
        for sharding in jax.tree.leaves(getattr(compiled, name, ())):
            if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
                shape = sharding.mesh.shape
                sizes = shape if sizes is None or len(shape) > len(sizes) else sizes
    return sizes


def _device_count(text: str) -> int:
    head = text[: text.find("\n")]
    counts = [re.search(rf"{name}=(\d+)", head) for name in ("num_partitions", "replica_count")]
    return math.prod(int(count[1]) for count in counts if count)


def _collective(
    module: hlo.Module,
    run: hlo.CountedInstruction,
    lines: SourceLines,
    mesh: Mapping[str, int] | None,
    devices: int,
) -> Collective | None:
    """Reads a collective; None for any other instruction."""
    instruction, computation = run.instruction, run.computation
    kind = instruction.opcode.removesuffix("-start")
    if kind not in KINDS or "is_host_transfer=true" in instruction.attributes:
        return None
    operands = [computation.instructions[name] for name in instruction.operands]
    moved = hlo.arrays(_result_of(instruction))
    if kind in ("reduce-scatter", "send"):
        moved = [a for o in operands[: 1 if kind == "send" else None] for a in hlo.arrays(o.shape)]
    pairs = parse_pairs(instruction.attribute("source_target_pairs") or "")
    permutes = bool(pairs) or kind == "send"
    groups = [[a, b] for a, b in pairs if a != b]
    if not permutes:
        groups = parse_groups(_groups_text(instruction), devices)
    axes: tuple[str, ...] | None = None if mesh is None else ()
    spans = True
    if mesh is not None and groups:
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
        spans_axes=spans or permutes,
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
    """The line of the first use of a value, directly or as part of a tuple.

    A collective on an argument before its first use has no line of its own.
    """
    for user in computation.users[instruction.name]:
        line = lines.of(user.attribute("metadata") or "")
        follow = user.opcode in ("get-tuple-element", "bitcast", "copy", "fusion")
        if line is None and (follow or user.opcode.endswith("-done")):
            line = _line_of_use(computation, user, lines)
        if line is not None:
            return line
    return None


def _result_of(instruction: hlo.Instruction) -> hlo.Shape:
    """The shape of the result. The tuple of a `-start` holds its operands, then its result.

    Older versions of XLA write only the result of an `all-reduce-start`.
    """
    shape = instruction.shape
    if not instruction.opcode.endswith("-start") or isinstance(shape, hlo.HloArray):
        return shape
    if instruction.opcode == "all-reduce-start" and isinstance(shape[0], hlo.HloArray):
        return shape
    return shape[1]


def _groups_text(instruction: hlo.Instruction) -> str:
    """The value of `replica_groups=`, up to the next attribute."""
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
