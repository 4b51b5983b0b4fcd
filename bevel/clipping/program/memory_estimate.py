"""Estimates the peak memory of a program from its shapes, without compiling it.

The estimate follows the traced program as a compiler would run it. Each value takes up its bytes
from where it is computed to where it is last read. The usual compiler optimisations decide which
values exist and when:

- Views (reshapes, transposes, sums over a single term) share the memory of their operand, because
  products and elementwise operations read any layout.
- Elementwise operations are fused into the steps that read them. Their result exists only if more
  than one step reads it, or a step that reads from memory: a product, a loop or a scatter. Each
  reader recomputes a broadcast or a cast.
- Elementwise operations run in place, in the buffer of an operand that is read for the last time.
- A step runs as soon as its operands exist. A value that needs only the forward pass is therefore
  held through the backward pass, wherever the program computes it.
- A loop holds its stacked inputs and outputs in full, and the values of one iteration. Outputs may
  overwrite inputs (`loops.py`). The backward pass of a `jax.checkpoint` is such an iteration: what
  it recomputes exists only within it.

The estimate leaves out padding, copies that change a layout, and scratch memory of kernels.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel.clipping.program import loops
from bevel.clipping.program.equations import REMATS, scan_counts
from bevel.sharding.axes import subprograms

VIEWS = {
    "reshape",
    "squeeze",
    "expand_dims",
    "transpose",
    "copy",
    "copy_p",
    "stop_gradient",
    "name",
}
VIEWS |= {"optimization_barrier", "sharding_constraint", "reshard", "mesh_cast", "pvary", "pcast"}
# Views if the number of elements stays the same: a new axis of length 1, or the sum over one.
PERHAPS_VIEWS = {"broadcast_in_dim", "reduce_sum", "reduce_max", "reduce_min"}
BROADCASTS = {"broadcast_in_dim", "iota"}
RECOMPUTED = BROADCASTS | {"convert_element_type"}
# Fused like elementwise operations, although operands and result differ in shape.
FUSED = BROADCASTS | {"slice", "dynamic_slice", "pad", "rev", "select_n", "clamp"}
# Not elementwise, although operands and result may have the same shape.
NOT_ELEMENTWISE = {"dot_general", "ragged_dot_general", "conv_general_dilated", "gather"}
NOT_ELEMENTWISE |= {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "concatenate"}
NOT_ELEMENTWISE |= {"stack", "sort", "fft", "cholesky", "triangular_solve"}
UPDATES = {"scatter", "scatter-add", "scatter_add", "dynamic_update_slice"}
HAVE_BODIES = {"scan", "while", "cond", "shard_map"}


def estimate_memory(program: ClosedJaxpr) -> int:
    """Bytes of arguments, results and temporaries at the peak, as the compiler counts them.

    This is within 30% of the compiler's figure for the programs of `benchmarks/clipping.py`. The
    shapes are those of the program, so on a mesh the estimate is for all devices together.
    """
    held = [*program.in_avals, *program.out_avals, *(v.aval for v in program.jaxpr.constvars)]
    return sum(map(bytes_of, held)) + ProgramSteps(program.jaxpr).temporaries()


def bytes_of(aval: Any) -> int:
    """The bytes of one value."""
    # Keys have no itemsize in some versions: assume two words.
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 8)


@dataclasses.dataclass(frozen=True)
class _ProgramStep:
    """One equation. Values are numbered."""

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    elementwise: bool
    bodies: tuple["ProgramSteps", ...] = ()  # of a loop, a branch or a recomputed backward pass
    overwrites: tuple[tuple[int, int], ...] = ()  # outputs of a loop, and the inputs they replace

    @property
    def reads_memory(self) -> bool:
        return not self.elementwise and not self.name.startswith(("reduce_", "arg"))

    @property
    def in_place(self) -> bool:
        return self.elementwise or self.name in UPDATES


class ProgramSteps:
    """A program as one list of steps, with calls inlined and views left out.

    `per_example` says which inputs belong to one example, for a program that will be batched. The
    values that depend on them exist once per example.
    """

    def __init__(self, jaxpr: Jaxpr, per_example: Sequence[bool] | None = None):
        self.sizes: list[int] = []
        self.per_example: list[bool] = []
        self.steps: list[_ProgramStep] = []
        flags = per_example or [False] * len(jaxpr.invars)
        inputs = [self.value(v, flag) for v, flag in zip(jaxpr.invars, flags, strict=True)]
        self.results = {r for r in self.walk(jaxpr, inputs) if r is not None}
        self.steps = _as_soon_as_possible(self.needed())

    def value(self, variable: Any, per_example: bool = False) -> int:
        """Numbers a new value."""
        self.sizes.append(bytes_of(variable.aval))
        self.per_example.append(per_example)
        return len(self.sizes) - 1

    def walk(self, jaxpr: Jaxpr, inputs: Sequence[int | None]) -> list[int | None]:
        """Records the steps of a program and returns its results. A literal is None."""
        numbers: dict[Any, int | None] = dict(zip(jaxpr.invars, inputs, strict=True))
        numbers |= {v: self.value(v) for v in jaxpr.constvars}

        def number(atom: Any) -> int | None:
            return None if isinstance(atom, Literal) else numbers[atom]

        free = loops.stacks_for_one_loop(jaxpr) if loops.pays() else set()
        for eqn in jaxpr.eqns:
            name, inner = eqn.primitive.name, subprograms(eqn.params)
            reads = [number(x) for x in eqn.invars]
            writes: list[int | None]
            if _is_view(eqn):
                writes = reads
            elif _is_call(eqn, inner):
                writes = self.walk(inner[0], reads)
            else:
                flags = [r is not None and self.per_example[r] for r in reads]
                outputs = tuple(self.value(v, any(flags)) for v in eqn.outvars)
                opened = inner if _has_bodies(eqn) else []
                bodies = tuple(
                    ProgramSteps(body, _flags_of_body(eqn, body, flags)) for body in opened
                )
                operands = tuple(r for r in reads if r is not None)
                replaced = loops.overwritten(eqn, free) if free and name == "scan" else {}
                first, carry = (sum(scan_counts(eqn)), scan_counts(eqn)[1]) if replaced else (0, 0)
                pairs = [(outputs[carry + j], reads[first + i]) for j, i in replaced.items()]
                overwrites = tuple((out, read) for out, read in pairs if read is not None)
                self.steps.append(
                    _ProgramStep(name, operands, outputs, _is_elementwise(eqn), bodies, overwrites)
                )
                writes = [*outputs]
            numbers.update(zip(eqn.outvars, writes, strict=True))
        return [number(x) for x in jaxpr.outvars]

    def needed(self) -> list[_ProgramStep]:
        """The steps that the results depend on."""
        needed, steps = set(self.results), list[_ProgramStep]()
        for step in reversed(self.steps):
            if needed.intersection(step.writes):
                needed.update(step.reads)
                steps.append(step)
        return steps[::-1]

    def temporaries(self, examples: int = 1) -> int:
        """Bytes at the peak, without arguments and results, for this many examples."""
        run = self.after_fusion()
        sizes = [
            size * (examples if own else 1)
            for size, own in zip(self.sizes, self.per_example, strict=True)
        ]
        last = {value: at for at, (_, read) in enumerate(run) for value in read}
        buffers = self.buffers(run, last)
        ends = dict[int, int]()
        for value, buffer in buffers.items():
            ends[buffer] = max(ends.get(buffer, -1), last.get(value, -1))
        outside = {buffers[value] for value in self.results if value in buffers}
        live, total, peak = set[int](), 0, 0
        for at, (step, _) in enumerate(run):
            new = {buffers[value] for value in step.writes} - outside - live
            live |= new
            total += sum(sizes[buffer] for buffer in new)
            inside = max((body.temporaries(examples) for body in step.bodies), default=0)
            peak = max(peak, total + inside)
            done = {buffer for buffer in live if ends[buffer] <= at}
            live -= done
            total -= sum(sizes[buffer] for buffer in done)
        return peak

    def after_fusion(self) -> list[tuple[_ProgramStep, frozenset[int]]]:
        """The steps whose results exist, each with the values in memory that it reads."""
        readers = dict[int, list[_ProgramStep]]()
        for step in self.steps:
            for value in set(step.reads):
                readers.setdefault(value, []).append(step)
        sources = dict[int, frozenset[int]]()
        run = list[tuple[_ProgramStep, frozenset[int]]]()
        for step in self.steps:
            read = frozenset[int]().union(*(sources.get(r, {r}) for r in step.reads))
            by = [reader for value in step.writes for reader in readers.get(value, [])]
            exists = not step.elementwise or not self.results.isdisjoint(step.writes)
            exists |= any(reader.reads_memory for reader in by)
            exists |= len(by) > 1 and bool(read) and step.name not in RECOMPUTED
            if exists:
                run.append((step, read))
            for value in step.writes:
                sources[value] = frozenset([value]) if exists else read
        return run

    def buffers(
        self, run: list[tuple[_ProgramStep, frozenset[int]]], last: dict[int, int]
    ) -> dict[int, int]:
        """The buffer of each value: its own, or that of a later value computed in place."""
        buffer_of = {value: value for step, _ in run for value in step.writes}
        for at, (step, read) in reversed([*enumerate(run)]):
            for output, value in step.overwrites:
                if value in buffer_of and value not in self.results and last[value] == at:
                    buffer_of[value] = buffer_of[output]
            if not step.in_place:
                continue
            (output,) = step.writes
            for value in sorted(read & buffer_of.keys() - self.results):
                same = self.sizes[value] == self.sizes[output]
                same &= self.per_example[value] == self.per_example[output]
                if last[value] == at and same:
                    buffer_of[value] = buffer_of[output]
                    break
        return buffer_of


def _is_view(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if any(isinstance(x, Literal) for x in eqn.invars):
        return False
    if name in PERHAPS_VIEWS and len(eqn.invars) == 1:
        before, after = eqn.invars[0].aval, eqn.outvars[0].aval
        return math.prod(before.shape) == math.prod(after.shape)  # type: ignore[attr-defined]
    return name in VIEWS


def _is_call(eqn: JaxprEqn, inner: list[Jaxpr]) -> bool:
    """Whether an equation only calls one subprogram, such as jit, remat and custom rules."""
    if len(inner) != 1 or _has_bodies(eqn):
        return False
    sides = (eqn.invars, inner[0].invars), (eqn.outvars, inner[0].outvars)
    return all(
        [x.aval.shape for x in a] == [x.aval.shape for x in b]  # type: ignore[attr-defined]
        for a, b in sides
    )


def _has_bodies(eqn: JaxprEqn) -> bool:
    """Whether what an equation computes inside exists only while it runs."""
    name = eqn.primitive.name
    return name in HAVE_BODIES or (name in REMATS and eqn.params.get("differentiated", False))


def _flags_of_body(eqn: JaxprEqn, body: Jaxpr, flags: Sequence[bool]) -> list[bool]:
    """Which inputs of a body belong to one example, given those of the equation around it."""
    own = list(flags)[len(flags) - len(body.invars) :]  # a branch has no index
    if len(own) != len(body.invars) or eqn.primitive.name == "while":
        return [any(flags)] * len(body.invars)
    if eqn.primitive.name == "scan":
        consts, carry = scan_counts(eqn)
        own[consts : consts + carry] = [any(flags)] * carry
    return own


def _is_elementwise(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if name in FUSED:
        return True
    if len(eqn.outvars) != 1 or name in NOT_ELEMENTWISE or name in UPDATES:
        return False
    if name.startswith("reduce_") or subprograms(eqn.params):
        return False
    avals: list[Any] = [x.aval for x in (*eqn.invars, *eqn.outvars)]
    return all(aval.shape in ((), avals[-1].shape) for aval in avals)


def _as_soon_as_possible(steps: Sequence[_ProgramStep]) -> list[_ProgramStep]:
    """Orders steps by when their operands exist, and otherwise as in the program."""
    order, ready = list[tuple[int, int]](), dict[int, int]()
    for at, step in enumerate(steps):
        can_run = max((ready.get(r, -1) for r in step.reads), default=at)
        order.append((can_run, at))
        # Elementwise operations are fused, so their result is ready with their operands.
        ready |= dict.fromkeys(step.writes, can_run if step.elementwise else at)
    return [steps[at] for _, at in sorted(order)]
