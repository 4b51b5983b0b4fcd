"""Evaluates a program with its taps, through calls, loops, branches and remats.

At a tap the program returns the values `h`, and the output passes a sink: an extra input whose
cotangent is what the tap reads. The taps in a `scan` are stacked by the scan itself: `h` becomes
one of its outputs and the sinks become inputs, so nothing is unrolled.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from bevel.clipping.program.equations import REMATS, bind, body_of_call, evaluate, scan_counts
from bevel.clipping.uses.shared_terms import SharedTerm
from bevel.sharding.types import zeros_of_type

Path = tuple[int, ...]
# Where the values of taps are held, a remat also saves products with parameters. Recomputing them
# would cost another forward pass, and memory is bounded by microbatches instead (`memory.py`).
SAVED = {"conv_general_dilated", "ragged_dot", "ragged_dot_general"}


def _saves_products(own: Any, primitive: Any, *avals: Any, **params: Any) -> Any:
    """A policy of `jax.checkpoint` that also saves products, unless the user's `own` decides.

    Products of an example's values with each other, such as attention weights, have batch
    dimensions.
    """
    decision = own(primitive, *avals, **params) if own else False
    if type(decision).__name__ == "Offloadable":
        return decision
    if primitive.name == "dot_general":
        return True if not any(params["dimension_numbers"][1]) else decision
    return True if primitive.name in SAVED else decision


# (number of the tap, inputs of its equation, outputs, sink) -> (outputs, values to return)
Read = Callable[[int, Sequence[Any], Sequence[Any], Any], tuple[Sequence[Any], Any]]


def evaluate_tapped(
    program: ClosedJaxpr,
    args: Sequence[Any],
    taps: Mapping[Path, int],
    sinks: Mapping[int, Any],
    read: Read,
    known: Mapping[int, Any] = MappingProxyType({}),
    added: Mapping[SharedTerm, Any] = MappingProxyType({}),
    save_products: bool = False,
) -> tuple[list[Any], dict[int, Any]]:
    """The outputs of a program, and the values returned from each tap.

    A remat may be tapped as well as the equations inside it. `known` holds the outputs of equations
    that are not evaluated, by their id; `added` is what to add to each shared term. With
    `save_products`, remats save the products of parameters with examples.
    """
    options = taps, read, added, save_products, False
    return _run(program.jaxpr, program.consts, args, (), sinks, known, *options)


def _run(
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    path: Path,
    sinks: Mapping[int, Any],
    known: Mapping[int, Any],
    taps: Mapping[Path, int],
    read: Read,
    added: Mapping[SharedTerm, Any],
    save_products: bool,
    looped: bool,
) -> tuple[list[Any], dict[int, Any]]:
    readings: dict[int, Any] = {}

    def handle(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        here = (*path, id(eqn))
        if id(eqn) in known:
            return [known[id(eqn)]]
        name, tap = eqn.primitive.name, taps.get(here)
        if tap is not None and name not in REMATS:
            outputs, readings[tap] = read(tap, inputs, bind(eqn, inputs), sinks[tap])
            return outputs
        within = {
            inner: sinks[inner]
            for at, inner in taps.items()
            if at[: len(here)] == here and inner != tap
        }
        terms = [term for term in added if term.path[: len(here)] == here]
        if not within and all(term.path == here for term in terms):
            values = bind(eqn, inputs)
            for term in terms:
                values[term.output] += added[term]
            return values

        def body(jaxpr: Any, args: Sequence[Any], sinks: Mapping[int, Any], *branch: int) -> Any:
            closed = jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())
            path = (*here, *branch)
            options = taps, read, added, save_products, looped or name == "scan"
            return _run(closed.jaxpr, closed.consts, args, path, sinks, {}, *options)

        run_body = {"scan": _through_scan, "cond": _through_cond}.get(name, _through_call)
        if name in REMATS:
            run_body = functools.partial(_through_remat, save_products=save_products, looped=looped)
        with eqn.ctx.manager:
            outputs, more = run_body(eqn, inputs, within, body)
        readings.update(more)
        if tap is not None:
            outputs, readings[tap] = read(tap, inputs, outputs, sinks[tap])
        return outputs

    return evaluate(jaxpr, consts, args, handle), readings


Body = Callable[..., tuple[list[Any], dict[int, Any]]]
Sinks = dict[int, Any]


def _through_call(
    eqn: JaxprEqn, inputs: Sequence[Any], sinks: Sinks, body: Body
) -> tuple[Sequence[Any], dict[int, Any]]:
    return body(body_of_call(eqn), inputs, sinks)


def _through_remat(
    eqn: JaxprEqn,
    inputs: Sequence[Any],
    sinks: Sinks,
    body: Body,
    save_products: bool,
    looped: bool,
) -> tuple[Sequence[Any], dict[int, Any]]:
    options = {k: eqn.params[k] for k in ("prevent_cse", "policy")}
    if save_products:
        options["policy"] = functools.partial(_saves_products, options["policy"])
        if looped:
            # The two passes are two loops, which share nothing. A barrier would only copy what the
            # backward loop reads.
            options["prevent_cse"] = False
    rematerialised = jax.checkpoint(lambda args, s: body(eqn.params["jaxpr"], args, s), **options)
    return rematerialised(list(inputs), sinks)


def _through_scan(
    eqn: JaxprEqn, inputs: Sequence[Any], sinks: Sinks, body: Body
) -> tuple[Sequence[Any], dict[int, Any]]:
    consts, carry = scan_counts(eqn)
    shared, first, slices = (
        inputs[:consts],
        inputs[consts : consts + carry],
        inputs[consts + carry :],
    )

    def step(state: Any, slices_and_sinks: Any) -> tuple[Any, Any]:
        own, sink = slices_and_sinks
        outputs, readings = body(eqn.params["jaxpr"], [*shared, *state, *own], sink)
        return outputs[:carry], (outputs[carry:], readings)

    options = {k: eqn.params[k] for k in ("length", "reverse", "unroll")}
    last, (stacked, readings) = jax.lax.scan(step, list(first), (list(slices), sinks), **options)
    return [*last, *stacked], readings


def _through_cond(
    eqn: JaxprEqn, inputs: Sequence[Any], sinks: Sinks, body: Body
) -> tuple[Sequence[Any], dict[int, Any]]:
    index, *operands = inputs
    branches = eqn.params["branches"]
    # All branches must return the same values: a tap reads zeros in the branches without it.
    types = [
        jax.eval_shape(lambda a, s, k=k, b=b: body(b, a, s, k), operands, sinks)[1]
        for k, b in enumerate(branches)
    ]
    all_taps = {tap: value for own in types for tap, value in own.items()}

    def branch(number: int, jaxpr: Any) -> Callable[..., Any]:
        def taken(args: Sequence[Any], sinks: Sinks) -> Any:
            outputs, readings = body(jaxpr, args, sinks, number)
            zeros = {
                tap: jax.tree.map(zeros_of_type, value)
                for tap, value in all_taps.items()
                if tap not in readings
            }
            readings = readings | zeros
            return outputs, {tap: readings[tap] for tap in all_taps}

        return taken

    return jax.lax.switch(index, [branch(k, b) for k, b in enumerate(branches)], operands, sinks)
