"""Runs the loops of a batched program with less memory for what they stack.

A `scan` fills its stacked outputs with zeros and then overwrites them step by step. Where a loop
stacks the values of every layer, this costs a GPU several percent of its time. Here, the outputs
begin uninitialised.

The backward pass of a loop over layers reads what the forward pass stacked, and stacks cotangents.
An output of a product and its cotangent have the same shape. So each step reads its slice of a
stack that nothing else needs, and then writes its own result there.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel.clipping.program.equations import (
    bind,
    body_of_call,
    evaluate,
    needed_inputs,
    opened,
    scan_counts,
)
from bevel.sharding.axes import subprograms
from bevel.sharding.types import as_varying, on_one_device, varying_axes


def with_lean_loops(
    program: ClosedJaxpr, run: Callable[..., list[Any]]
) -> Callable[..., list[Any]]:
    """`run`, which evaluates `program` for a batch, with its loops replaced where that pays."""
    if not pays() or not _has_scan(program.jaxpr):
        return run

    def lean(*args: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(args)
        flat = lambda *leaves: run(*jax.tree.unflatten(structure, leaves))  # noqa: E731
        batched = jax.make_jaxpr(flat)(*leaves)
        return _run(batched.jaxpr, batched.consts, leaves)

    return lean


def pays() -> bool:
    """On one device. A compiler that splits the program would have to split both stacks alike."""
    return on_one_device()


def _has_scan(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive.name == "scan" or any(map(_has_scan, subprograms(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _run(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    free = stacks_for_one_loop(jaxpr)

    def handle(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        body = body_of_call(eqn)
        if body is not None and _has_scan(body.jaxpr):
            return _run(body.jaxpr, body.consts, inputs)
        if not _is_plain(eqn):
            return bind(eqn, inputs)
        return run_loop(eqn, inputs, overwritten(eqn, free))

    return evaluate(jaxpr, consts, args, handle)


def _is_plain(eqn: JaxprEqn) -> bool:
    """Whether an equation is a scan of ordinary arrays that stacks something."""
    if eqn.primitive.name != "scan" or eqn.params["unroll"] != 1 or not eqn.params["length"]:
        return False
    stacked: list[Any] = [v.aval for v in eqn.outvars[scan_counts(eqn)[1] :]]
    extended = (jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended) for aval in stacked)
    return bool(stacked) and not any(extended)


def stacks_for_one_loop(jaxpr: Jaxpr) -> set[Any]:
    """The variables that a loop stacks and one equation reads."""
    loops = [eqn for eqn in jaxpr.eqns if _is_plain(eqn)]
    stacked = {v for eqn in loops for v in eqn.outvars[scan_counts(eqn)[1] :]}
    read = [v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal)]
    times = Counter([*read, *(v for v in jaxpr.outvars if not isinstance(v, Literal))])
    return {v for v in stacked if times[v] == 1}


def overwritten(eqn: JaxprEqn, free: Collection[Any]) -> dict[int, int]:
    """The stacked input, by number, in whose place each stacked output of a loop is written.

    Only inputs in `free` are overwritten, and only by results that are computed from the slice that
    they replace. Any other result might be written before the slice is read, so the compiler would
    copy the stack.
    """
    consts, carry = scan_counts(eqn)
    body = opened(eqn.params["jaxpr"])
    first, found = consts + carry, dict[int, int]()
    for j, result in enumerate(body.outvars[carry:]):
        needed = needed_inputs(body, [result])
        for i, own in enumerate(body.invars[first:]):
            same = own.aval == result.aval and own in needed and eqn.invars[first + i] in free
            if same and i not in found.values():
                found[j] = i
                break
    return found


def run_loop(
    eqn: JaxprEqn, inputs: Sequence[Any], overwritten: Mapping[int, int] = MappingProxyType({})
) -> list[Any]:
    """A scan, each step of which writes its slice of the stacked outputs.

    These begin uninitialised, or as the inputs that they overwrite.
    """
    consts, carry = scan_counts(eqn)
    shared, first, stacked = (
        inputs[:consts],
        inputs[consts : consts + carry],
        inputs[consts + carry :],
    )
    body, length = eqn.params["jaxpr"], eqn.params["length"]
    body = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())

    def uninitialised(aval: Any) -> jax.Array:
        return as_varying(jax.lax.empty((length, *aval.shape), aval.dtype), varying_axes(aval))

    outputs = [
        stacked[overwritten[j]] if j in overwritten else uninitialised(v.aval)
        for j, v in enumerate(body.jaxpr.outvars[carry:])
    ]
    place = {i: j for j, i in overwritten.items()}

    def step(count: jax.Array, state: Any) -> Any:
        values, outputs = state
        at = length - 1 - count if eqn.params["reverse"] else count
        read = [outputs[place[i]] if i in place else x for i, x in enumerate(stacked)]
        slices = [jax.lax.dynamic_index_in_dim(x, at, keepdims=False) for x in read]
        results = _run(body.jaxpr, body.consts, [*shared, *values, *slices])
        written = [
            jax.lax.dynamic_update_index_in_dim(stack, x, at, 0)
            for stack, x in zip(outputs, results[carry:], strict=True)
        ]
        return results[:carry], written

    with eqn.ctx.manager:
        values, outputs = jax.lax.fori_loop(0, length, step, (list(first), outputs))
    return [*values, *outputs]
