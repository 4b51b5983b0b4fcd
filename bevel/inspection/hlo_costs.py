"""FLOPs and memory traffic of a compiled program, loops counted as often as they run.

The compiler's own analysis counts the body of a loop once. Here only matrix products and
convolutions have FLOPs: all else is bound by memory.
"""

import math
import re
from collections.abc import Iterable

from bevel.inspection.hlo import (
    Computation,
    ComputationRun,
    HloArray,
    Instruction,
    Module,
    arrays,
    bytes_of,
)

# What moves no data: names, or bodies whose own instructions are counted.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional"}
FREE |= {"call", "after-all", "partition-id", "replica-id", "opt-barrier", "optimization-barrier"}
PRODUCT_CALLS = ("__cublas$", "__onednn$matmul", "__cublas$lt$matmul", "__triton_gemm")


def flops(runs: Iterable[ComputationRun]) -> tuple[float, list[str]]:
    """FLOPs of all products of a step on one device, and names of products that cannot be read."""
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
    """FLOPs of one product, 0 of what is none, None where its sizes cannot be read."""
    target = instruction.attribute("custom_call_target") or ""
    if instruction.opcode == "dot":
        contracted = instruction.numbers("lhs_contracting_dims")
    elif instruction.opcode == "convolution":
        return _convolution_flops(instruction, computation)
    elif any(name in target for name in PRODUCT_CALLS):
        listed = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
        if listed is None:
            return None
        contracted = tuple(map(int, re.findall(r"\d+", listed[1])))
    else:
        return None if "conv" in target.lower() else 0.0
    left = arrays(computation.operand(instruction).shape)[0]
    result = arrays(instruction.shape)[0]
    return 2.0 * result.size * math.prod(left.dims[d] for d in contracted)


def _convolution_flops(instruction: Instruction, computation: Computation) -> float | None:
    """Each output takes one product with every weight of its kernel."""
    labels = re.search(r"dim_labels=\w+_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        return None
    kernel = arrays(computation.operand(instruction, 1).shape)[0]
    result = arrays(instruction.shape)[0]
    outputs = kernel.dims[labels[1].index("o")]
    groups = max(instruction.numbers("batch_group_count") or (1,))
    return 2.0 * result.size * kernel.size / outputs / groups


def traffic(module: Module, runs: Iterable[ComputationRun]) -> float:
    """Bytes that a step reads from and writes to the memory of one device."""
    total = 0.0
    for run in runs:
        free = run.in_fusion or run.instruction.opcode in FREE
        if run.times and not free and not run.instruction.opcode.endswith("-done"):
            total += run.times * _traffic_of(module, run.instruction, run.computation)
    return total


def _traffic_of(module: Module, instruction: Instruction, computation: Computation) -> float:
    """Operands and result; of what is cut out of, or put into, a larger array, only that part."""
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
    return read + _written(body)


def _bytes_read(fusion: Computation, number: int) -> float:
    """What a fusion reads of an operand: if it is only cut from, the pieces."""
    parameter = fusion.parameter(number)
    total = 0.0
    for user in _reached(fusion, parameter):
        if user.opcode in ("dynamic-slice", "slice", "gather") and user.operands:
            total += bytes_of(user.shape)
        elif user.opcode == "dynamic-update-slice" and _into(fusion, user, parameter):
            continue  # in place
        else:
            return float(bytes_of(parameter.shape))
    return total


def _reached(computation: Computation, value: Instruction) -> list[Instruction]:
    """The users of a value, seen through what only renames it."""
    found = []
    for user in computation.users[value.name]:
        found += _reached(computation, user) if user.opcode in ("bitcast", "copy") else [user]
    return found


def _into(computation: Computation, update: Instruction, value: Instruction) -> bool:
    return computation.source(computation.operand(update)) is value


def _written(fusion: Computation) -> float:
    """What a fusion writes: an update in place, or its whole result."""
    root = fusion.source(fusion.root)
    outputs = [root]
    if root.opcode == "tuple":
        outputs = [fusion.source(fusion.instructions[name]) for name in root.operands]
    total = 0.0
    for output in outputs:
        if output.opcode == "dynamic-update-slice":
            total += bytes_of(fusion.operand(output, 1).shape)
        else:
            total += bytes_of(output.shape)
    return total


def sliced_bytes(module: Module, computation: Computation, reduced: Instruction, parts: int) -> int:
    """Bytes of an all-reduce of which each device keeps one of `parts` equal pieces only.

    That is a reduce-scatter: the CPU's compiler has no pass to say so.
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
        if _only_pieces(module, computation, e, arrays(e.shape)[0].size // parts)
    )


def _only_pieces(module: Module, computation: Computation, value: Instruction, size: int) -> bool:
    """Whether a value is used, and only by slices with `size` elements, also inside fusions."""

    def takes_a_piece(user: Instruction) -> bool:
        if user.opcode in ("dynamic-slice", "slice"):
            return arrays(user.shape)[0].size == size
        if user.opcode != "fusion":
            return False
        (body,) = module.called(user)
        origin = computation.source(value)
        sources = [computation.source(computation.instructions[n]) for n in user.operands]
        places = [i for i, source in enumerate(sources) if source is origin]
        return all(_only_pieces(module, body, body.parameter(i), size) for i in places)

    users = _reached(computation, value)
    return bool(users) and all(map(takes_a_piece, users))
