"""Estimate the FLOPs and memory traffic of a compiled program.

The body of a loop is counted as often as it runs; the compiler's own analysis counts it once. Only
matrix products and convolutions have FLOPs, because everything else is bound by memory.
"""

import math
import re
from collections.abc import Iterable

from bevel.inspection.hlo import (
    Computation,
    CountedInstruction,
    HloArray,
    Instruction,
    Module,
    arrays,
    bytes_of,
)

# Opcodes that move no data themselves. The bodies of calls are counted by their instructions.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"}
FREE |= {"call", "after-all", "partition-id", "replica-id", "opt-barrier", "optimization-barrier"}
PRODUCT_CALLS = ("__cublas$", "__onednn$matmul", "__cublas$lt$matmul", "__triton_gemm")


def flops(runs: Iterable[CountedInstruction]) -> tuple[float, list[str]]:
    """FLOPs of all products of a step on one device, and names of products of unknown size."""
    total, unread = 0.0, list[str]()
    for run in runs:
        found = _flops_of(run.instruction, run.computation)
        if found is None:
            target = run.instruction.attribute("custom_call_target")
            unread.append(target.strip('"') if target else run.instruction.name)
        else:
            total += run.times * found
    return total, sorted(set(unread))


def _flops_of(instruction: Instruction, computation: Computation) -> float | None:
    """FLOPs of one product, 0 for other instructions, None if the sizes are unknown."""
    target = instruction.attribute("custom_call_target") or ""
    if instruction.opcode == "dot":
        contracted = instruction.numbers("lhs_contracting_dims")
    elif instruction.opcode == "convolution":
        return _convolution_flops(instruction, computation)
    elif any(name in target for name in PRODUCT_CALLS):
        dims = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
        if dims is None:
            return None
        contracted = tuple(map(int, re.findall(r"\d+", dims[1])))
    else:
        return None if "conv" in target.lower() else 0.0
    left = arrays(computation.operand(instruction).shape)[0]
    result = arrays(instruction.shape)[0]
    return 2.0 * result.size * math.prod(left.dims[d] for d in contracted)


def _convolution_flops(instruction: Instruction, computation: Computation) -> float | None:
    """Each output element multiplies every weight of its kernel once."""
    labels = re.search(r"dim_labels=\w+_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        return None
    kernel = arrays(computation.operand(instruction, 1).shape)[0]
    result = arrays(instruction.shape)[0]
    outputs = kernel.dims[labels[1].index("o")]
    groups = max(instruction.numbers("batch_group_count") or (1,))
    return 2.0 * result.size * kernel.size / outputs / groups


def traffic(module: Module, runs: Iterable[CountedInstruction]) -> float:
    """Bytes that a step reads from and writes to the memory of one device."""
    total = 0.0
    for run in runs:
        free = run.in_fusion or run.instruction.opcode in FREE
        if run.times and not free and not run.instruction.opcode.endswith("-done"):
            total += run.times * _traffic_of(module, run.instruction, run.computation)
    return total


def _traffic_of(module: Module, instruction: Instruction, computation: Computation) -> float:
    """Bytes of operands and result. A slice or an update counts only the part that it touches."""
    operands = [computation.instructions[name] for name in instruction.operands]
    if instruction.opcode in ("dynamic-slice", "slice", "gather"):
        return 2.0 * bytes_of(instruction.shape)
    if instruction.opcode == "dynamic-update-slice":
        return 2.0 * bytes_of(operands[1].shape)
    bodies = module.called(instruction) if instruction.opcode == "fusion" else []
    if not bodies:
        return float(bytes_of(instruction.shape) + sum(bytes_of(o.shape) for o in operands))
    (body,) = bodies
    read = sum(_bytes_read(body, i) for i in range(len(operands)))
    return read + _bytes_written(body)


def _bytes_read(fusion: Computation, number: int) -> float:
    """What a fusion reads of an operand: all of it, or only slices."""
    parameter = fusion.parameter(number)
    total = 0.0
    for user in _users(fusion, parameter):
        if user.opcode in ("dynamic-slice", "slice", "gather") and user.operands:
            total += bytes_of(user.shape)
        elif (
            user.opcode == "dynamic-update-slice"
            and fusion.source(fusion.operand(user)) is parameter
        ):
            continue  # an update in place reads nothing
        else:
            return float(bytes_of(parameter.shape))
    return total


def _users(computation: Computation, value: Instruction) -> list[Instruction]:
    """The instructions that use a value, directly or through copies."""
    users = []
    for user in computation.users[value.name]:
        users += _users(computation, user) if user.opcode in ("bitcast", "copy") else [user]
    return users


def _bytes_written(fusion: Computation) -> float:
    """What a fusion writes: the updated slices, or its full results."""
    root = fusion.source(fusion.root)
    outputs = [root]
    if root.opcode == "tuple":
        outputs = [fusion.source(fusion.instructions[name]) for name in root.operands]
    slices = [
        fusion.operand(output, 1) if output.opcode == "dynamic-update-slice" else output
        for output in outputs
    ]
    return float(sum(bytes_of(written.shape) for written in slices))


def sliced_bytes(module: Module, computation: Computation, reduced: Instruction, parts: int) -> int:
    """Bytes of an all-reduce of which each device uses only one of `parts` equal slices.

    Other backends turn it into a reduce-scatter, but the CPU compiler has no such pass.
    """
    done = [u for u in computation.users[reduced.name] if u.opcode.endswith("-done")]
    result = done[0] if done else reduced
    elements = [result]
    if not isinstance(result.shape, HloArray):
        users = computation.users[result.name]
        elements = [user for user in users if user.opcode == "get-tuple-element"]
    return sum(
        bytes_of(e.shape)
        for e in elements
        if _only_sliced(module, computation, e, arrays(e.shape)[0].size // parts)
    )


def _only_sliced(module: Module, computation: Computation, value: Instruction, size: int) -> bool:
    """Whether a value has uses and all are slices of `size` elements, even inside fusions."""

    def slices(user: Instruction) -> bool:
        if user.opcode in ("dynamic-slice", "slice"):
            return arrays(user.shape)[0].size == size
        if user.opcode != "fusion":
            return False
        (body,) = module.called(user)
        origin = computation.source(value)
        sources = [computation.source(computation.instructions[n]) for n in user.operands]
        numbers = [i for i, source in enumerate(sources) if source is origin]
        return all(_only_sliced(module, body, body.parameter(i), size) for i in numbers)

    users = _users(computation, value)
    return bool(users) and all(map(slices, users))
