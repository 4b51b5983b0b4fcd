"""Find per-example gradients that are summed over devices before their norm is computed.

Inside `jax.shard_map`, autodiff sums the gradients of a replicated parameter over the shards. Under
`jax.vmap` it does so for each example: the gradients of example i of every shard become one sum,
and the norm of that sum is not the norm of any example. Clipping by this norm bounds nothing, and
JAX raises no error.

The check follows values through the program. A value is reported if it is summed over an axis that
carries the batch, then squared, then summed to an array (a scalar would be the norm of the batch
gradient, which is fine), and then used like a norm: in a root, a division or a comparison.
"""

import enum
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

from bevel.inspection.compiled_step import CompiledStep
from bevel.inspection.findings import Finding
from bevel.sharding.axes import equations_in
from bevel.sharding.source_lines import SourceLine, line_of
from bevel.sharding.types import spec_axes

SUMS = {"psum", "psum_invariant", "psum2"}
USES = {"sqrt", "rsqrt", "div", "min", "max", "lt", "le", "gt", "ge", "pow", "rem"}


class _State(enum.IntEnum):
    """How far a value has come towards a norm of summed gradients."""

    PLAIN = 0
    SUMMED = 1
    SQUARED = 2
    REDUCED = 3


def early_sums(step: CompiledStep) -> Iterator[Finding]:
    """Per-example norms that are computed from sums over devices."""
    found: dict[SourceLine | None, tuple[str, ...]] = {}
    for eqn in equations_in(step.program.jaxpr, "shard_map"):
        axes = tuple(axis for axis in _batch_axes(eqn, step) if axis in step.mesh)
        if axes:
            body: Any = eqn.params["jaxpr"]
            _walk(body, [NOTHING] * len(body.invars), axes, found)
    for line, axes in found.items():
        over = ", ".join(axes)
        yield Finding(
            "error",
            "early sum",
            f"per-example norms are computed after a sum over {over}: each is the norm of a sum of "
            "examples from all shards, and clipping by it does not bound any of them",
            f"write jax.lax.pcast(params, {axes!r}, to='varying') before differentiating and sum "
            "after clipping, or use bevel.clipped_grad, which does both",
            line,
        )


def _batch_axes(eqn: Any, step: CompiledStep) -> list[str]:
    """The manual axes that split the leading dimension of an input that is not a parameter."""
    arguments = dict(zip(step.program.jaxpr.invars, step.arguments, strict=True))
    axes: list[str] = []
    for var, spec in zip(eqn.invars, eqn.params["in_specs"], strict=True):
        argument = None if isinstance(var, Literal) else arguments.get(var)
        if argument is None or not argument.is_param:
            axes += [a for a in spec_axes((*spec.partitions, None)[0]) if a not in axes]
    return axes


Known = tuple[_State, SourceLine | None]  # the state of a value, and the line of its sum
NOTHING: Known = (_State.PLAIN, None)


def _walk(
    jaxpr: Any,
    inputs: Sequence[Known],
    axes: tuple[str, ...],
    found: dict[SourceLine | None, tuple[str, ...]],
) -> list[Known]:
    """The states of a program's outputs. Adds the sums that are used as norms to `found`."""
    if isinstance(jaxpr, ClosedJaxpr):
        jaxpr = jaxpr.jaxpr
    known: dict[Any, Known] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(v: Any) -> Known:
        return NOTHING if isinstance(v, Literal) else known.get(v, NOTHING)

    for eqn in jaxpr.eqns:
        states = [read(v) for v in eqn.invars]
        name = eqn.primitive.name
        bodies = _bodies_of(eqn)
        if bodies:
            outputs = [NOTHING] * len(eqn.outvars)
            for body in bodies:
                body_inputs = states[len(states) - len(_body_vars(body)) :]
                body_outputs = _walk(body, body_inputs, axes, found)
                pairs = zip(outputs, body_outputs, strict=False)
                outputs = [max(pair, key=lambda known: known[0]) for pair in pairs]
        else:
            best = max(states, key=lambda k: k[0], default=NOTHING)
            if name in USES and best[0] == _State.REDUCED and eqn.outvars[0].aval.shape:
                found.setdefault(best[1], axes)
            outputs = [_after(eqn, best, axes)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, outputs, strict=False))
    return [read(v) for v in jaxpr.outvars]


def _bodies_of(eqn: Any) -> list[Any]:
    """The jaxprs of an equation that take its inputs, or the last of them (branches)."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return list(params["branches"])
    if name == "while":
        return []
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        body = params.get(key)
        if body is not None and len(_body_vars(body)) == len(eqn.invars):
            return [body]
    return []


def _body_vars(body: Any) -> list[Any]:
    return list((body.jaxpr if isinstance(body, ClosedJaxpr) else body).invars)


def _after(eqn: Any, best: Known, axes: tuple[str, ...]) -> Known:
    """The state of an equation's outputs, given that of its most advanced input."""
    state, line = best
    name, shape = eqn.primitive.name, eqn.outvars[0].aval.shape
    same = len({v for v in eqn.invars if not isinstance(v, Literal)}) == 1
    if name in SUMS and set(eqn.params.get("axes", ())) & set(axes) and shape:
        return _State.SUMMED, line_of(eqn)
    if state == _State.SUMMED:
        squared = name == "square" or (name == "integer_pow" and eqn.params["y"] == 2)
        if squared or (name == "mul" and same and len(eqn.invars) == 2):
            return _State.SQUARED, line
        if name == "dot_general" and same and len(eqn.invars) == 2:
            return (_State.REDUCED, line) if shape else NOTHING
    if state >= _State.SQUARED and name in ("reduce_sum", "dot_general"):
        return (_State.REDUCED, line) if shape else NOTHING
    elementwise = any(v.aval.shape == shape for v in eqn.invars)
    reshaped = name in ("reshape", "transpose", "convert_element_type", "squeeze", "expand_dims")
    return best if elementwise or reshaped else NOTHING
