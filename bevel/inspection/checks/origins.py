"""From which argument of a compiled program a value is cut."""

import re

from bevel.inspection.hlo import Computation, Instruction, Module

# Operations that keep the numbers of their first operand, or some of them.
KEEPING = {"bitcast", "copy", "convert", "reshape", "transpose", "dynamic-slice", "slice"}
KEEPING |= {"opt-barrier", "optimization-barrier", "copy-start", "copy-done"}


def origin(module: Module, computation: str, name: str) -> str | None:
    """The path of the argument that a value is a part of, or None if it was computed.

    Through loops (what they start from), calls and fusions that only cut and turn.
    """
    inside = module.computations[computation]
    return _follow(module, inside, inside.instructions[name])


def _follow(
    module: Module, inside: Computation, value: Instruction, element: int | None = None
) -> str | None:
    """`element`: which part of a tuple is meant."""
    while True:
        if value.opcode in KEEPING:
            value = inside.operand(value)
        elif value.opcode == "get-tuple-element":
            element = value.numbers("index")[0]
            value = inside.operand(value)
        elif value.opcode == "tuple" and element is not None:
            value, element = inside.operand(value, element), None
        elif value.opcode == "while":
            value = inside.operand(value)
        elif value.opcode == "fusion" and element is None:
            number = _cut_from(module.called(value)[0])
            if number is None:
                return None
            value = inside.operand(value, number)
        elif value.opcode == "parameter":
            if inside is module.entry:
                path = re.search(r'op_name="((?:[^"\\]|\\.)*)"', value.attributes)
                return path[1].replace("\\", "") if path else None
            found = _caller(module, inside)
            if found is None:
                return None
            inside, call = found
            value = inside.operand(call, int(value.inside) if call.opcode != "while" else 0)
        else:
            return None


def _cut_from(fusion: Computation) -> int | None:
    """Which operand a fusion only cuts and turns, if it does nothing else."""
    value = fusion.root
    while value.opcode in KEEPING:
        value = fusion.operand(value)
    return int(value.inside) if value.opcode == "parameter" else None


def _caller(module: Module, body: Computation) -> tuple[Computation, Instruction] | None:
    """Where a computation is called: loops and calls."""
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            if instruction.opcode in ("while", "call", "fusion", "async-start") and any(
                body is called for called in module.called(instruction)
            ):
                return computation, instruction
    return None
