"""Evaluates the equations of a traced program one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.sharding import Sharding

from bevel.sharding.source_lines import keep_line

Handler = Callable[[JaxprEqn, list[Any]], Sequence[Any]]

# Calls whose body may be evaluated in place, and the parameter that holds the body.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",  # replaces the two above from jax 0.11 on
}
REMATS = {"remat2", "checkpoint", "remat"}  # the names of `jax.checkpoint`
# All equations that run a body once, on their inputs, and the parameters that may hold it.
WITH_BODY = {*CALLS, *REMATS, "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def evaluate(
    jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], handle: Handler
) -> list[Any]:
    """Runs `jaxpr`, evaluating every equation by `handle(equation, inputs) -> outputs`."""
    env: dict[Any, Any] = dict(
        zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True)
    )

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        with keep_line(eqn):
            outputs = handle(eqn, [read(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def bind(
    eqn: JaxprEqn, inputs: Sequence[Any], in_its_context: bool = True, **changed: Any
) -> list[Any]:
    """Applies one equation to new inputs, with the parameters in `changed` replaced.

    `in_its_context` restores the mesh and compute placement that the equation was traced under.
    """
    params = eqn.primitive.get_bind_params(eqn.params | changed)
    if in_its_context:
        with eqn.ctx.manager:
            outputs = eqn.primitive.bind(*inputs, **params)
    else:
        outputs = eqn.primitive.bind(*inputs, **params)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def depends_on(jaxpr: Jaxpr, inputs: Sequence[Any]) -> set[Any]:
    """The variables of a program whose value may depend on `inputs`, including `inputs`."""
    dependent = set(inputs)
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in dependent for v in eqn.invars):
            dependent.update(eqn.outvars)
    return dependent


def body_of_call(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The body of a nested jit, or None for other equations."""
    name = CALLS.get(eqn.primitive.name)
    body = eqn.params.get(name) if name else None
    # In newer JAX, Jaxpr and ClosedJaxpr are one class that holds its constants.
    if body is None or isinstance(body, ClosedJaxpr):
        return body
    return ClosedJaxpr(body, [])


def body_run_once(eqn: JaxprEqn) -> Jaxpr | None:
    """The body of a jit, checkpoint or custom derivative; None for other equations."""
    if eqn.primitive.name not in WITH_BODY:
        return None
    body = next((eqn.params[name] for name in BODIES if name in eqn.params), None)
    return None if body is None else opened(body)


def opened(body: Any) -> Jaxpr:
    """A program without its constants."""
    return body.jaxpr if isinstance(body, ClosedJaxpr) else body


def scan_counts(eqn: JaxprEqn) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are its carry."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()  # trees of inputs, from jax 0.11 on
    return len(list(consts)), len(list(carry))


def inline_calls(program: ClosedJaxpr, args: Sequence[Any]) -> ClosedJaxpr:
    """The same program without nested jits. Their in_ and out_shardings become constraints."""

    def constrain(values: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
        pairs = zip(values, shardings or (None,) * len(values), strict=True)
        return [
            jax.lax.with_sharding_constraint(x, s) if isinstance(s, Sharding) else x
            for x, s in pairs
        ]

    def handle(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        body = body_of_call(eqn)
        if body is None:
            return bind(eqn, inputs)
        inputs = constrain(inputs, eqn.params.get("in_shardings", ()))
        outputs = evaluate(body.jaxpr, body.consts, inputs, handle)
        return constrain(outputs, eqn.params.get("out_shardings", ()))

    if not any(body_of_call(eqn) for eqn in program.eqns):
        return program
    return jax.make_jaxpr(lambda *a: evaluate(program.jaxpr, program.consts, a, handle))(*args)
