"""Evaluate a program with its taps in place, through calls, loops, branches and remats.

At a tap the values `h` leave the program and the output passes by a sink. Within a `scan` the scan
itself stacks both: `h` joins its outputs, and the sinks its inputs, so nothing is unrolled.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from bevel.clipping.program.equations import bind, body_of_call, evaluate, scan_counts
from bevel.clipping.uses.find import REMATS
from bevel.clipping.uses.shared_terms import SharedTerm
from bevel.sharding.types import zeros_of_type

Path = tuple[int, ...]
# (number of the tap, inputs of its equation, output, sink) -> (output, values that leave)
Read = Callable[[int, Sequence[Any], Any, Any], tuple[Any, Any]]


def evaluate_tapped(
    program: ClosedJaxpr,
    args: Sequence[Any],
    taps: Mapping[Path, int],
    sinks: Mapping[int, Any],
    read: Read,
    given: Mapping[int, Any] = MappingProxyType({}),
    added: Mapping[SharedTerm, Any] = MappingProxyType({}),
) -> tuple[list[Any], dict[int, Any]]:
    """The outputs of a program, and what leaves it at each tap.

    `given`: the outputs of some equations, by their id. `added`: to common terms, what is added.
    """
    return _run(program.jaxpr, program.consts, args, (), taps, sinks, read, given, added)


def _run(
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    path: Path,
    taps: Mapping[Path, int],
    sinks: Mapping[int, Any],
    read: Read,
    given: Mapping[int, Any] = MappingProxyType({}),
    added: Mapping[SharedTerm, Any] = MappingProxyType({}),
) -> tuple[list[Any], dict[int, Any]]:
    leaving: dict[int, Any] = {}

    def handle(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        here = (*path, id(eqn))
        if id(eqn) in given:
            return [given[id(eqn)]]
        if here in taps:
            tap = taps[here]
            (output,) = bind(eqn, inputs)
            output, leaving[tap] = read(tap, inputs, output, sinks[tap])
            return [output]
        within = {tap: sinks[tap] for at, tap in taps.items() if at[: len(here)] == here}
        common = [c for c in added if c.path[: len(here)] == here]
        if not within and all(c.path == here for c in common):
            values = bind(eqn, inputs)
            for c in common:
                values[c.output] += added[c]
            return values

        def body(jaxpr: Any, args: Sequence[Any], sinks: Mapping[int, Any], *branch: int) -> Any:
            closed = jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())
            path = (*here, *branch)
            return _run(closed.jaxpr, closed.consts, args, path, taps, sinks, read, added=added)

        name = eqn.primitive.name
        opened = {"scan": _through_scan, "cond": _through_cond}.get(name, _through_call)
        if name in REMATS:
            opened = _through_remat
        with eqn.ctx.manager:
            outputs, more = opened(eqn, inputs, within, body)
        leaving.update(more)
        return outputs

    return evaluate(jaxpr, consts, args, handle), leaving


Body = Callable[..., tuple[list[Any], dict[int, Any]]]
Sinks = dict[int, Any]


def _through_call(
    eqn: JaxprEqn, inputs: Sequence[Any], sinks: Sinks, body: Body
) -> tuple[Sequence[Any], dict[int, Any]]:
    return body(body_of_call(eqn), inputs, sinks)


def _through_remat(
    eqn: JaxprEqn, inputs: Sequence[Any], sinks: Sinks, body: Body
) -> tuple[Sequence[Any], dict[int, Any]]:
    options = {k: eqn.params[k] for k in ("prevent_cse", "policy")}
    again = jax.checkpoint(lambda args, s: body(eqn.params["jaxpr"], args, s), **options)
    return again(list(inputs), sinks)


def _through_scan(
    eqn: JaxprEqn, inputs: Sequence[Any], sinks: Sinks, body: Body
) -> tuple[Sequence[Any], dict[int, Any]]:
    consts, carry = scan_counts(eqn)
    shared, first, slices = (
        inputs[:consts],
        inputs[consts : consts + carry],
        inputs[consts + carry :],
    )

    def step(state: Any, here: Any) -> tuple[Any, Any]:
        own, sink = here
        outputs, leaving = body(eqn.params["jaxpr"], [*shared, *state, *own], sink)
        return outputs[:carry], (outputs[carry:], leaving)

    options = {k: eqn.params[k] for k in ("length", "reverse", "unroll")}
    last, (stacked, leaving) = jax.lax.scan(step, list(first), (list(slices), sinks), **options)
    return [*last, *stacked], leaving


def _through_cond(
    eqn: JaxprEqn, inputs: Sequence[Any], sinks: Sinks, body: Body
) -> tuple[Sequence[Any], dict[int, Any]]:
    index, *operands = inputs
    branches = eqn.params["branches"]
    # What leaves at a tap of one branch is zero in the others.
    types = [
        jax.eval_shape(lambda a, s, k=k, b=b: body(b, a, s, k), operands, sinks)[1]
        for k, b in enumerate(branches)
    ]
    everything = {tap: value for found in types for tap, value in found.items()}

    def branch(number: int, jaxpr: Any) -> Callable[..., Any]:
        def taken(args: Sequence[Any], sinks: Sinks) -> Any:
            outputs, leaving = body(jaxpr, args, sinks, number)
            nothing = {
                tap: jax.tree.map(zeros_of_type, value)
                for tap, value in everything.items()
                if tap not in leaving
            }
            both = leaving | nothing
            return outputs, {tap: both[tap] for tap in everything}

        return taken

    return jax.lax.switch(index, [branch(k, b) for k, b in enumerate(branches)], operands, sinks)
