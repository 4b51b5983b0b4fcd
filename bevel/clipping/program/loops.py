"""Runs the loops of a batched program without filling the memory of their outputs first.

A `scan` fills its stacked outputs with zeros and then overwrites them step by step. Where a loop
stacks the values of every layer, this costs a GPU several percent of its time. Here, the outputs
begin uninitialised.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from bevel.clipping.program.equations import bind, body_of_call, evaluate, scan_counts
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
    """On one GPU. Elsewhere memory is filled with zeros in any case."""
    return jax.default_backend() == "gpu" and on_one_device()


def _has_scan(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive.name == "scan" or any(map(_has_scan, subprograms(eqn.params)))
        for eqn in jaxpr.eqns
    )


def _run(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    def handle(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        body = body_of_call(eqn)
        if body is not None and _has_scan(body.jaxpr):
            return _run(body.jaxpr, body.consts, inputs)
        if not _is_plain(eqn):
            return bind(eqn, inputs)
        return run_loop(eqn, inputs)

    return evaluate(jaxpr, consts, args, handle)


def _is_plain(eqn: JaxprEqn) -> bool:
    """Whether an equation is a scan of ordinary arrays that stacks something."""
    if eqn.primitive.name != "scan" or eqn.params["unroll"] != 1:
        return False
    stacked: list[Any] = [v.aval for v in eqn.outvars[scan_counts(eqn)[1] :]]
    extended = (jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended) for aval in stacked)
    return bool(stacked) and not any(extended)


def run_loop(eqn: JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
    """A scan, whose stacked outputs begin uninitialised. Every step writes its slice of them."""
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

    outputs = [uninitialised(v.aval) for v in body.jaxpr.outvars[carry:]]

    def step(count: jax.Array, state: Any) -> Any:
        values, outputs = state
        at = length - 1 - count if eqn.params["reverse"] else count
        slices = [jax.lax.dynamic_index_in_dim(x, at, keepdims=False) for x in stacked]
        results = _run(body.jaxpr, body.consts, [*shared, *values, *slices])
        written = [
            jax.lax.dynamic_update_index_in_dim(stack, x, at, 0)
            for stack, x in zip(outputs, results[carry:], strict=True)
        ]
        return results[:carry], written

    with eqn.ctx.manager:
        values, outputs = jax.lax.fori_loop(0, length, step, (list(first), outputs))
    return [*values, *outputs]
