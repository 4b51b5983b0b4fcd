"""Parse the text of a compiled program (HLO): its computations, instructions and shapes.

JAX returns this text on every backend (`compiled.as_text()`).
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator

from bevel.errors import FixArgumentsError

HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .* )?\{$")
INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
NAME = re.compile(r"%([\w.\-]+)")
NEWER_XLA = "It may come from a newer XLA: please report it."


@dataclasses.dataclass(frozen=True)
class HloArray:
    """The shape of one array on one device."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        # The first number in the name of a dtype is its width in bits: bf16, u4, f8e4m3fn.
        bits = re.match(r"[a-z]+(\d+)", self.dtype)
        width = 8 if self.dtype == "pred" else int(bits[1]) if bits else 0
        return math.ceil(self.size * width / 8)


Shape = HloArray | tuple["Shape", ...]


def arrays(shape: Shape) -> list[HloArray]:
    """The arrays of a shape, with tuples flattened."""
    return [shape] if isinstance(shape, HloArray) else [a for part in shape for a in arrays(part)]


def bytes_of(shape: Shape) -> int:
    return sum(array.bytes for array in arrays(shape))


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation. `operand_text` is the text between the parentheses."""

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    operand_text: str
    attributes: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """The value of an attribute, including its braces, or None."""
        found = re.search(rf"(?:^|[ ,]){name}=", self.attributes)
        if found is None:
            return None
        rest = self.attributes[found.end() :]
        if rest.startswith("{"):
            return rest[: _closing(rest)]
        return re.match(r"[^,\s]*", rest)[0]  # type: ignore[index]

    def numbers(self, name: str) -> tuple[int, ...]:
        """The numbers in an attribute such as `dimensions={0,2}`."""
        return tuple(map(int, re.findall(r"\d+", self.attribute(name) or "")))


@dataclasses.dataclass(frozen=True)
class Computation:
    """The body of the program, of a loop, a branch or a fusion."""

    name: str
    instructions: dict[str, Instruction]

    @functools.cached_property
    def root(self) -> Instruction:
        return next(i for i in self.instructions.values() if i.is_root)

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    def parameter(self, number: int) -> Instruction:
        return next(
            i
            for i in self.instructions.values()
            if i.opcode == "parameter" and i.operand_text.strip() == str(number)
        )

    def operand(self, instruction: Instruction, number: int = 0) -> Instruction:
        return self.instructions[instruction.operands[number]]

    def source(self, instruction: Instruction) -> Instruction:
        """Follows a value back through copies, casts, reshapes and transposes."""
        while instruction.opcode in ("bitcast", "copy", "convert", "reshape", "transpose"):
            instruction = self.operand(instruction)
        return instruction


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program for one device."""

    computations: dict[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction) -> list[Computation]:
        """The computations that an instruction runs, without the reducers of reductions."""
        names = {
            "while": ("condition", "body"),
            "conditional": ("false_computation", "true_computation", "branch_computations"),
            "call": ("to_apply",),
            "fusion": ("calls",),
            "async-start": ("calls",),
            "custom-call": ("called_computations", "calls"),
        }.get(instruction.opcode, ())
        texts = [instruction.attribute(name) or "" for name in names]
        found = [n for text in texts for n in re.findall(r"[\w.\-]+", text.replace("%", " "))]
        return [self.computations[n] for n in found if n in self.computations]


@dataclasses.dataclass(frozen=True)
class CountedInstruction:
    """An instruction and how often it runs."""

    instruction: Instruction
    computation: Computation
    times: int  # in one step; 0 in a branch that is not counted
    in_branch: bool = False
    in_fusion: bool = False
    loops: tuple[int | None, ...] = ()  # trip counts of the enclosing loops; None if unknown


def parse(text: str) -> Module:
    """Parses `compiled.as_text()`."""
    computations: dict[str, Computation] = {}
    entry, body, name = None, dict[str, Instruction](), None
    for line in text.splitlines():
        if name is None:
            header = HEADER.match(line.rstrip())
            if header:
                name, body = header[2], {}
                entry = name if header[1] else entry
        elif line.startswith("}"):
            computations[name], name = Computation(name, body), None
        else:
            instruction = parse_instruction(line)
            body[instruction.name] = instruction
    if entry is None:
        raise FixArgumentsError(
            "this is not the text of a compiled program: it has no ENTRY. Pass "
            "jax.jit(step).lower(...).compile(), or its as_text()."
        )
    return Module(computations, computations[entry])


def parse_instruction(line: str) -> Instruction:
    found = INSTRUCTION.match(line)
    if found is None:
        raise FixArgumentsError(f"cannot parse this line of HLO: {line!r:.200}. {NEWER_XLA}")
    rest = found[3]
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    shape = parse_shape(rest[:end])
    opcode, rest = rest[end:].lstrip().split("(", 1)
    end = _closing("(" + rest) - 1
    operand_text = rest[: end - 1]
    operands = tuple(NAME.findall(operand_text))
    if not operands and opcode not in ("parameter", "constant", "iota"):
        # The short form of the text has no percent signs.
        operands = tuple(re.findall(r"([\w.\-]+)\s*(?:,|$)", operand_text))
    attributes = rest[end:].lstrip(", ")
    return Instruction(found[2], shape, opcode, operands, operand_text, attributes, bool(found[1]))


def parse_shape(text: str) -> Shape:
    """Parses `f32[2,3]{1,0}` or a tuple of shapes."""
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if text.startswith("("):
        return tuple(parse_shape(part) for part in _split_at_commas(text[1:-1]))
    found = ARRAY.match(text)
    if found is None:
        raise FixArgumentsError(f"cannot parse this shape of HLO: {text!r:.100}. {NEWER_XLA}")
    return HloArray(found[1], tuple(int(d.strip("<= ")) for d in found[2].split(",") if d.strip()))


def _closing(text: str) -> int:
    """The index after the bracket that closes the first character of `text`."""
    depth, quoted = 0, False
    for i, c in enumerate(text):
        quoted ^= c == '"' and text[i - 1] != "\\"
        depth += 0 if quoted else (c in "([{") - (c in ")]}")
        if depth == 0:
            return i + 1
    raise FixArgumentsError(f"unclosed bracket in the compiled program: {text!r:.100}")


def _split_at_commas(text: str) -> Iterator[str]:
    """Splits at the commas outside of brackets."""
    depth = start = 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    if text[start:].strip():
        yield text[start:]


def runs(
    module: Module, weight: Callable[[CountedInstruction], float], branch: int | None = None
) -> list[CountedInstruction]:
    """Every instruction that one step may run, and how often.

    One branch of each conditional is counted: number `branch`, or the one of largest `weight`.
    """

    def walk(computation: Computation, outer: CountedInstruction) -> list[CountedInstruction]:
        found = []
        for instruction in computation.instructions.values():
            here = dataclasses.replace(outer, instruction=instruction, computation=computation)
            found.append(here)
            bodies = module.called(instruction)
            if instruction.opcode == "while":
                count = _trip_count(module, computation, instruction)
                times = here.times * (1 if count is None else count)
                here = dataclasses.replace(here, times=times, loops=(*here.loops, count))
            in_branch = here.in_branch or instruction.opcode == "conditional"
            in_fusion = here.in_fusion or instruction.opcode == "fusion"
            inside = dataclasses.replace(here, in_branch=in_branch, in_fusion=in_fusion)
            parts = [walk(body, inside) for body in bodies]
            if instruction.opcode == "conditional" and parts:
                weights = [sum(map(weight, part)) for part in parts]
                taken = weights.index(max(weights)) if branch is None else branch % len(parts)
                parts = [
                    part if i == taken else [dataclasses.replace(r, times=0) for r in part]
                    for i, part in enumerate(parts)
                ]
            found += [run for part in parts for run in part]
        return found

    first = next(iter(module.entry.instructions.values()))
    return walk(module.entry, CountedInstruction(first, module.entry, 1))


def _trip_count(module: Module, outside: Computation, loop: Instruction) -> int | None:
    """The trip count that the compiler states, or that follows from start, step and limit."""
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes)
    if known:
        return int(known[1])
    condition, body = module.called(loop)
    limit = _loop_limit(module, condition)
    if limit is None:
        return None
    index, end, inclusive = limit
    start = _constant(outside.source(outside.operand(loop)), outside, index)
    step = _constant_step(body, index)
    if start is None or not step or step < 0:
        return None
    return max(0, math.ceil((end + inclusive - start) / step))


def _loop_limit(module: Module, condition: Computation) -> tuple[int, int, bool] | None:
    """For a loop up to a constant: `(tuple index of the counter, limit, limit is included)`."""
    root = condition.source(condition.root)
    values = [condition.source(condition.instructions[n]) for n in root.operands]
    if root.opcode == "fusion":
        (body,) = module.called(root)
        root = body.source(body.root)
        if root.opcode != "compare":
            return None
        operands = [body.source(body.instructions[n]) for n in root.operands]
        values = [values[int(o.operand_text)] if o.opcode == "parameter" else o for o in operands]
    direction = root.attribute("direction")
    if root.opcode != "compare" or direction not in ("LT", "LE") or len(values) != 2:
        return None
    index, limit = values
    if index.opcode != "get-tuple-element" or limit.opcode != "constant":
        return None
    return int(index.attribute("index") or 0), int(limit.operand_text), direction == "LE"


def _constant(value: Instruction, computation: Computation, index: int) -> int | None:
    """Element `index` of a tuple, if it is a constant."""
    if value.opcode != "tuple":
        return None
    element = computation.source(computation.operand(value, index))
    return int(element.operand_text) if element.opcode == "constant" else None


def _constant_step(body: Computation, index: int) -> int | None:
    """The constant that a loop's body adds to element `index`, or None."""
    if body.root.opcode != "tuple":
        return None
    added = body.source(body.operand(body.root, index))
    if added.opcode != "add":
        return None
    parts = [body.source(body.operand(added, i)) for i in (0, 1)]
    steps = [int(p.operand_text) for p in parts if p.opcode == "constant"]
    elements = [p.numbers("index") for p in parts if p.opcode == "get-tuple-element"]
    return steps[0] if len(steps) == 1 and elements == [(index,)] else None
