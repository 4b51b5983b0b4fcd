"""Constraints that cost more than none: the step is compiled again without them."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jax.sharding import AxisType, NamedSharding

from bevel.inspection.checks.placement import constraints_in
from bevel.inspection.collectives import inspect_step
from bevel.inspection.compiled_step import CompiledStep
from bevel.inspection.findings import Finding
from bevel.inspection.step_report import StepReport
from bevel.sharding.source_lines import SourceLine, line_of
from bevel.sharding.tables import short

MOST = 8  # lines with constraints: up to so many are tried one by one


@dataclasses.dataclass(frozen=True)
class ConstraintCost:
    """What a device sends, computes and holds."""

    sent: float
    flops: float
    memory: float

    @classmethod
    def of(cls, report: StepReport) -> "ConstraintCost":
        held = report.memory.temporaries + report.memory.outputs if report.memory else 0
        return cls(report.sent, report.flops, held)

    def more_than(self, other: "ConstraintCost", floor: float) -> dict[str, tuple[float, float]]:
        """What costs at least a tenth more, and more than `floor`."""
        pairs = {
            f.name: (getattr(self, f.name), getattr(other, f.name))
            for f in dataclasses.fields(self)
        }
        return {name: (a, b) for name, (a, b) in pairs.items() if a > 1.1 * b + floor}


def costly_constraints(step: CompiledStep) -> Iterator[Finding]:
    """Constraints without which the step sends, computes and holds no more, and some of it less.

    Those on results are left alone: they say where a result is wanted.
    """
    jaxpr = step.program.jaxpr
    wanted = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    found = [e for e in constraints_in(jaxpr) if not wanted & set(e.outvars) and _auto(e)]
    lines = list(dict.fromkeys(line_of(e) for e in found))
    if not found:
        return

    def cost_without(*dropped: SourceLine | None) -> ConstraintCost:
        return ConstraintCost.of(
            _recompiled(step, lambda e: any(e is f for f in found) and line_of(e) in dropped)
        )

    floor = float(step.limits.moved)
    whole, bare = cost_without(), cost_without(*lines)
    if not whole.more_than(bare, floor):
        return
    blamed = False
    for line in lines if 1 < len(lines) <= MOST else ():
        without = cost_without(line)
        worse, better = whole.more_than(without, floor), without.more_than(whole, floor)
        if worse and not better:
            blamed = True
            yield _finding("a sharding constraint costs", line, worse)
    if not blamed and not bare.more_than(whole, floor):
        line = lines[0]
        subject = "a sharding constraint costs"
        if len(lines) > 1:
            subject = f"the sharding constraints on {len(lines)} lines, together, cost"
        yield _finding(subject, line, whole.more_than(bare, floor))


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
        f"{subject} more than none: a device " + ", ".join(parts),
        "leave it out, or name the axes that the value already has there (the batch on its "
        "leading dimension)",
        line,
        sent - bare,
    )


def _auto(eqn: Any) -> bool:
    sharding = eqn.params["sharding"]
    return isinstance(sharding, NamedSharding) and all(
        kind == AxisType.Auto for kind in sharding.mesh.axis_types
    )


def _recompiled(step: CompiledStep, drop: Callable[[Any], bool]) -> StepReport:
    """The step with some constraints dropped, compiled for the same arguments."""
    program = ClosedJaxpr(rewritten(step.program.jaxpr, drop), step.program.consts)
    arguments = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in step.arguments
    ]
    compiled = jax.jit(jaxpr_as_fun(program)).lower(*arguments).compile()
    return inspect_step(compiled)


def rewritten(jaxpr: Jaxpr, drop: Callable[[Any], bool]) -> Jaxpr:
    """The same program, where what `drop` says of constraints is their operand."""
    renamed: dict[Any, Any] = {}

    def read(v: Any) -> Any:
        return v if isinstance(v, Literal) else renamed.get(v, v)

    eqns = []
    for eqn in jaxpr.eqns:
        invars = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "sharding_constraint" and drop(eqn):
            renamed[eqn.outvars[0]] = invars[0]
            continue
        # The bodies of shard_maps are programs of one shard: their constraints stay.
        bodies = {} if eqn.primitive.name == "shard_map" else eqn.params
        params = eqn.params | {k: _inside(v, drop) for k, v in bodies.items()}
        eqns.append(eqn.replace(invars=invars, params=params))
    return jaxpr.replace(eqns=eqns, outvars=[read(v) for v in jaxpr.outvars])


def _inside(value: Any, drop: Callable[[Any], bool]) -> Any:
    """A parameter of an equation, the programs in it rewritten."""
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(rewritten(value.jaxpr, drop), value.consts)
    if isinstance(value, Jaxpr):
        return rewritten(value, drop)
    if type(value) in (tuple, list):
        return type(value)(_inside(v, drop) for v in value)
    return value
