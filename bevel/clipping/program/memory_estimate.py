"""The memory that a program needs at its peak, estimated from its shapes; nothing is compiled.

The traced program is followed as a compiler would run it, one value after the other: each takes its
bytes from where it is computed to where it is last read. What every compiler does with such a
program decides which values exist at all, and when:

- views (reshapes, transposes, sums over a single term) are their operand, since products and
  elementwise work read any layout;
- elementwise work is fused into what reads it. Its result exists only where more than one step
  reads it, or one that reads from memory: a product, a loop, a scatter. What a broadcast makes is
  made again by each reader;
- it is done in place, in the buffer of an operand that is read there for the last time;
- a step runs as soon as its operands exist: what needs values of the forward pass alone is held
  through the backward pass, wherever the program has it;
- a loop holds its stacked inputs and outputs in full, into which it writes, and one turn's values.

The last digit is the compiler's own: padding, copies for a layout, scratch memory of kernels.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel.sharding.axes import subprograms

VIEWS = {"reshape", "squeeze", "expand_dims", "transpose", "copy", "copy_p", "stop_gradient"}
VIEWS |= {"optimization_barrier", "sharding_constraint", "reshard", "mesh_cast", "pvary", "pcast"}
# Views where they change no number of elements: a new axis of length 1, the sum over one.
PERHAPS_VIEWS = {"broadcast_in_dim", "reduce_sum", "reduce_max", "reduce_min"}
SPREADS = {"broadcast_in_dim", "iota"}
# Fused like elementwise work, though operands and result differ in shape.
MOVES = SPREADS | {"slice", "dynamic_slice", "pad", "rev", "select_n", "clamp"}
# Not elementwise, though operands and result may agree in shape.
NOT_ELEMENTWISE = {"dot_general", "ragged_dot", "conv_general_dilated", "gather", "sort", "fft"}
NOT_ELEMENTWISE |= {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "concatenate"}
NOT_ELEMENTWISE |= {"stack", "cholesky", "triangular_solve"}
UPDATES = {"scatter", "scatter-add", "scatter_add", "dynamic_update_slice"}
HAVE_TURNS = {"scan", "while", "cond", "shard_map"}


def estimate_memory(program: ClosedJaxpr) -> int:
    """Bytes of arguments, results and temporaries at the peak, as the compiler counts them.

    Within 30% of the compiler's number on the programs of `benchmarks/clipping.py`. Shapes are
    those of the program: on a mesh, of all devices together.
    """
    held = [*program.in_avals, *program.out_avals, *(v.aval for v in program.jaxpr.constvars)]
    return sum(map(_bytes_of, held)) + ProgramSteps(program.jaxpr).temporaries()


def _bytes_of(aval: Any) -> int:
    # Keys have no item size in every version: two words.
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 8)


@dataclasses.dataclass(frozen=True)
class _ProgramStep:
    """One equation. Values are numbers."""

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    elementwise: bool
    inside: int = 0  # bytes of a loop's own values, of one turn

    @property
    def reads_memory(self) -> bool:
        return not self.elementwise and not self.name.startswith(("reduce_", "arg"))

    @property
    def in_place(self) -> bool:
        return self.elementwise or self.name in UPDATES


class ProgramSteps:
    """A program as one list of steps, calls opened and views left out."""

    def __init__(self, jaxpr: Jaxpr):
        self.sizes: list[int] = []
        self.steps: list[_ProgramStep] = []
        self.given = [self.value(v) for v in jaxpr.invars]
        self.results = {r for r in self.walk(jaxpr, self.given) if r is not None}
        self.steps = _as_soon_as_possible(self.needed())

    def value(self, variable: Any) -> int:
        self.sizes.append(_bytes_of(variable.aval))
        return len(self.sizes) - 1

    def walk(self, jaxpr: Jaxpr, given: Sequence[int | None]) -> list[int | None]:
        """Notes the steps of a program; gives its results. None is a number known in advance."""
        known: dict[Any, int | None] = dict(zip(jaxpr.invars, given, strict=True))
        known |= {v: self.value(v) for v in jaxpr.constvars}

        def number(atom: Any) -> int | None:
            return None if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            name, inner = eqn.primitive.name, subprograms(eqn.params)
            reads = [number(x) for x in eqn.invars]
            writes: list[int | None]
            if _is_view(eqn):
                writes = reads
            elif _is_call(eqn, inner):
                writes = self.walk(inner[0], reads)
            else:
                made = [self.value(v) for v in eqn.outvars]
                bodies = inner if name in HAVE_TURNS else []
                turn = max((ProgramSteps(body).temporaries() for body in bodies), default=0)
                from_steps = tuple(r for r in reads if r is not None)
                self.steps.append(
                    _ProgramStep(name, from_steps, tuple(made), _is_elementwise(eqn), turn)
                )
                writes = [*made]
            known.update(zip(eqn.outvars, writes, strict=True))
        return [number(x) for x in jaxpr.outvars]

    def needed(self) -> list[_ProgramStep]:
        """The steps that results depend on."""
        wanted, found = set(self.results), list[_ProgramStep]()
        for step in reversed(self.steps):
            if wanted.intersection(step.writes):
                wanted.update(step.reads)
                found.append(step)
        return found[::-1]

    def temporaries(self) -> int:
        """Bytes at the peak beside arguments and results."""
        run = self.after_fusion()
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
            total += sum(self.sizes[buffer] for buffer in new)
            peak = max(peak, total + step.inside)
            done = {buffer for buffer in live if ends[buffer] <= at}
            live -= done
            total -= sum(self.sizes[buffer] for buffer in done)
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
            exists |= len(by) > 1 and bool(read) and step.name not in SPREADS
            if exists:
                run.append((step, read))
            for value in step.writes:
                sources[value] = frozenset([value]) if exists else read
        return run

    def buffers(
        self, run: list[tuple[_ProgramStep, frozenset[int]]], last: dict[int, int]
    ) -> dict[int, int]:
        """Whose place each value takes: its own, or that of what is later computed in place."""
        found = {value: value for step, _ in run for value in step.writes}
        for at, (step, read) in reversed([*enumerate(run)]):
            if not step.in_place:
                continue
            (made,) = step.writes
            for value in sorted(read & found.keys() - self.results):
                if last[value] == at and self.sizes[value] == self.sizes[made]:
                    found[value] = found[made]
                    break
        return found


def _is_view(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if any(isinstance(x, Literal) for x in eqn.invars):
        return False
    if name in PERHAPS_VIEWS and len(eqn.invars) == 1:
        before, after = eqn.invars[0].aval, eqn.outvars[0].aval
        return math.prod(before.shape) == math.prod(after.shape)  # type: ignore[attr-defined]
    return name in VIEWS


def _is_call(eqn: JaxprEqn, inner: list[Jaxpr]) -> bool:
    """Whether an equation is its one subprogram: jit, remat, custom rules."""
    if len(inner) != 1 or eqn.primitive.name in HAVE_TURNS:
        return False
    sides = (eqn.invars, inner[0].invars), (eqn.outvars, inner[0].outvars)
    return all(
        [x.aval.shape for x in a] == [x.aval.shape for x in b]  # type: ignore[attr-defined]
        for a, b in sides
    )


def _is_elementwise(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if name in MOVES:
        return True
    if len(eqn.outvars) != 1 or name in NOT_ELEMENTWISE or name in UPDATES:
        return False
    if name.startswith("reduce_") or subprograms(eqn.params):
        return False
    avals: list[Any] = [x.aval for x in (*eqn.invars, *eqn.outvars)]
    return all(aval.shape in ((), avals[-1].shape) for aval in avals)


def _as_soon_as_possible(steps: Sequence[_ProgramStep]) -> list[_ProgramStep]:
    """Steps in the order in which their operands exist; else as the program has them."""
    order, ready = list[tuple[int, int]](), dict[int, int]()
    for at, step in enumerate(steps):
        can_run = max((ready.get(r, -1) for r in step.reads), default=at)
        order.append((can_run, at))
        # Elementwise work takes no turn of its own.
        ready |= dict.fromkeys(step.writes, can_run if step.elementwise else at)
    return [steps[at] for _, at in sorted(order)]
