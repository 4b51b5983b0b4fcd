"""Find sharding constraints that make a step more expensive, by compiling it without them."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.sharding import AxisType, NamedSharding

from bevel.inspection.collectives import inspect_step
from bevel.inspection.compiled_step import CompiledStep
from bevel.inspection.findings import Finding
from bevel.inspection.step_report import StepReport
from bevel.sharding.axes import equations_in
from bevel.sharding.source_lines import SourceLine, line_of
from bevel.sharding.tables import short

MAX_LINES = 8  # if constraints are on more lines, they are not tried one by one


@dataclasses.dataclass(frozen=True)
class ConstraintCost:
    """What a device sends, computes and holds in one step."""

    sent: float
    flops: float
    memory: float

    @classmethod
    def of(cls, report: StepReport) -> "ConstraintCost":
        held = report.memory.temporaries + report.memory.outputs if report.memory else 0
        return cls(report.sent, report.flops, held)

    def more_than(self, other: "ConstraintCost", floor: float) -> dict[str, tuple[float, float]]:
        """The costs that exceed those of `other` by more than a tenth plus `floor`."""
        pairs = {
            f.name: (getattr(self, f.name), getattr(other, f.name))
            for f in dataclasses.fields(self)
        }
        return {name: (a, b) for name, (a, b) in pairs.items() if a > 1.1 * b + floor}


def costly_constraints(step: CompiledStep) -> Iterator[Finding]:
    """Constraints without which the step sends, computes or holds less, and no more of anything.

    Constraints on results are not checked, because they choose the sharding of a result.
    """
    jaxpr = step.program.jaxpr
    results = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    requested = equations_in(jaxpr, "sharding_constraint")
    found = [e for e in requested if not results & set(e.outvars) and _auto(e)]
    lines = list(dict.fromkeys(line_of(e) for e in found))
    if not found:
        return

    def cost_without(*dropped: SourceLine | None) -> ConstraintCost:
        return ConstraintCost.of(
            _recompiled(step, lambda e: any(e is f for f in found) and line_of(e) in dropped)
        )

    floor = float(step.limits.sent)
    full, bare = cost_without(), cost_without(*lines)
    if not full.more_than(bare, floor):
        return
    single_found = False
    for line in lines if 1 < len(lines) <= MAX_LINES else ():
        without = cost_without(line)
        worse, better = full.more_than(without, floor), without.more_than(full, floor)
        if worse and not better:
            single_found = True
            yield _finding("a sharding constraint makes", line, worse)
    if not single_found and not bare.more_than(full, floor):
        subject = "a sharding constraint makes"
        if len(lines) > 1:
            subject = f"the sharding constraints on {len(lines)} lines together make"
        yield _finding(subject, lines[0], full.more_than(bare, floor))


def _finding(
    subject: str, line: SourceLine | None, worse: dict[str, tuple[float, float]]
) -> Finding:
    words = {"sent": "sends", "flops": "computes", "memory": "holds"}
    units = {"sent": "B", "flops": "FLOPs", "memory": "B"}
    parts = [
        f"{words[name]} {short(a, units[name])} with it and {short(b, units[name])} without"
        for name, (a, b) in worse.items()
    ]
    sent, bare = worse.get("sent", (0.0, 0.0))
    return Finding(
        "warning",
        "costly constraint",
        f"{subject} the step more expensive: a device " + ", ".join(parts),
        "leave it out, or name the axes over which the value is already split (those of the batch "
        "on its leading dimension)",
        line,
        sent - bare,
    )


def _auto(eqn: Any) -> bool:
    sharding = eqn.params["sharding"]
    return isinstance(sharding, NamedSharding) and all(
        kind == AxisType.Auto for kind in sharding.mesh.axis_types
    )


def _recompiled(step: CompiledStep, drop: Callable[[Any], bool]) -> StepReport:
    """Compiles the step for the same arguments without some of its constraints."""
    program = ClosedJaxpr(drop_constraints(step.program.jaxpr, drop), step.program.consts)
    arguments = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in step.arguments
    ]
    compiled = jax.jit(jaxpr_as_fun(program)).lower(*arguments).compile()
    return inspect_step(compiled)


def drop_constraints(jaxpr: Jaxpr, drop: Callable[[Any], bool]) -> Jaxpr:
    """The program without the constraints for which `drop(eqn)` is true."""
    operand_of: dict[Any, Any] = {}  # from the output of a dropped constraint

    def read(v: Any) -> Any:
        return v if isinstance(v, Literal) else operand_of.get(v, v)

    eqns = []
    for eqn in jaxpr.eqns:
        invars = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "sharding_constraint" and drop(eqn):
            operand_of[eqn.outvars[0]] = invars[0]
            continue
        # Constraints inside a shard_map are about one shard, and stay.
        bodies = {} if eqn.primitive.name == "shard_map" else eqn.params
        params = eqn.params | {k: _drop_in_param(v, drop) for k, v in bodies.items()}
        eqns.append(eqn.replace(invars=invars, params=params))
    return jaxpr.replace(eqns=eqns, outvars=[read(v) for v in jaxpr.outvars])


def _drop_in_param(value: Any, drop: Callable[[Any], bool]) -> Any:
    """A parameter of an equation with the constraints in its jaxprs dropped."""
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(drop_constraints(value.jaxpr, drop), value.consts)
    if isinstance(value, Jaxpr):
        return drop_constraints(value, drop)
    if type(value) in (tuple, list):
        return type(value)(_drop_in_param(v, drop) for v in value)
    return value
