"""Trace a value of a compiled program back to the argument that it is a part of."""

import re

from bevel.inspection.hlo import Computation, Instruction, Module

# Operations whose result consists of elements of their first operand.
REARRANGING = {"bitcast", "copy", "convert", "reshape", "transpose", "dynamic-slice", "slice"}
REARRANGING |= {"opt-barrier", "optimization-barrier", "copy-start", "copy-done"}


def origin(module: Module, computation: str, name: str) -> str | None:
    """The path of the argument that a value is a part of, or None if it was computed.

    Values are followed through loops (to their initial values), calls, and fusions that only slice
    and rearrange.
    """
    body = module.computations[computation]
    return _follow(module, body, body.instructions[name])


def _follow(
    module: Module, body: Computation, value: Instruction, element: int | None = None
) -> str | None:
    """`element` is the index of the value in a tuple."""
    while True:
        if value.opcode in REARRANGING or value.opcode == "while":
            value = body.operand(value)
        elif value.opcode == "get-tuple-element":
            element = value.numbers("index")[0]
            value = body.operand(value)
        elif value.opcode == "tuple" and element is not None:
            value, element = body.operand(value, element), None
        elif value.opcode == "fusion" and element is None:
            number = _rearranged_operand(module.called(value)[0])
            if number is None:
                return None
            value = body.operand(value, number)
        elif value.opcode == "parameter":
            if body is module.entry:
                path = re.search(r'op_name="((?:[^"\\]|\\.)*)"', value.attributes)
                return path[1].replace("\\", "") if path else None
            found = _caller(module, body)
            if found is None:
                return None
            body, call = found
            value = body.operand(call, int(value.operand_text) if call.opcode != "while" else 0)
        else:
            return None


def _rearranged_operand(fusion: Computation) -> int | None:
    """The number of the operand that a fusion slices or rearranges, if it does nothing else."""
    value = fusion.root
    while value.opcode in REARRANGING:
        value = fusion.operand(value)
    return int(value.operand_text) if value.opcode == "parameter" else None


def _caller(module: Module, body: Computation) -> tuple[Computation, Instruction] | None:
    """The instruction that calls a computation, and the computation that it is in."""
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            if instruction.opcode in ("while", "call", "fusion", "async-start") and any(
                body is called for called in module.called(instruction)
            ):
                return computation, instruction
    return None
