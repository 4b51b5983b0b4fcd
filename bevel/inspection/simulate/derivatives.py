"""Differentiate a simulated program as JAX differentiates the real one.

The derivative is taken first, by JAX, of the program with the real `shard_map` in it, and simulated
then: custom rules see the mesh, and what cannot be differentiated there raises here too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

from bevel.inspection.simulate.program import Around, evaluate
from bevel.sharding.axes import subprograms

Function = Callable[..., Any]


def simulated(program: ClosedJaxpr) -> Function:
    """`program` as a function of its constants and arguments, to run and to differentiate."""
    count = len(program.consts)

    def real(*values: Any) -> list[Any]:
        return jax.core.eval_jaxpr(program.jaxpr, values[:count], *values[count:])

    def run(*values: Any) -> list[Any]:
        closed = ClosedJaxpr(program.jaxpr, values[:count])
        return evaluate(closed, values[count:], Around())

    if holds("custom_vjp_call", program.jaxpr):
        return _with_reverse_mode_of(real, run)
    return _with_forward_mode_of(real, run)


def _simulate_call(f: Function, *args: Any) -> Any:
    """`f(*args)`, every shard_map in it simulated."""
    program, shape = jax.make_jaxpr(f, return_shape=True)(*args)
    outputs = simulated(program)(*program.consts, *jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shape), outputs)


def _with_forward_mode_of(real: Function, run: Function) -> Function:
    """`run`, with the derivative of `real`.

    The linear part is one program, without custom rules, and the rest another, which is
    simulated with its own derivative. So higher derivatives and reverse mode follow. A program
    that cannot be taken apart so, such as one with a `while_loop`, has forward mode only.
    """
    differentiable = jax.custom_jvp(run)

    @differentiable.defjvp
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moved = [x for x in tangents if x.dtype != jax.dtypes.float0]
        linear: list[Jaxpr] = []

        def at(*primals: Any) -> tuple[Any, Any]:
            varied, along = _differentiable_part(real, primals)
            outputs, pushforward = jax.linearize(along, *varied)
            program = jax.make_jaxpr(pushforward)(*moved)
            linear.append(program.jaxpr)
            return outputs, program.consts

        def forward_only(primals: Any, moved: Any) -> tuple[Any, Any]:
            varied, along = _differentiable_part(real, primals)
            return jax.jvp(along, tuple(varied), tuple(moved))

        try:
            outputs, consts = _simulate_call(at, *primals)
        except ValueError as error:
            if "Linearization failed" not in str(error):
                raise
            return _simulate_call(forward_only, tuple(primals), tuple(moved))
        pushed = evaluate(ClosedJaxpr(linear[0], consts), moved, Around(linear=True))
        return outputs, pushed

    return differentiable


def _with_reverse_mode_of(real: Function, run: Function) -> Function:
    """`run`, with the cotangents of `real`: custom rules for reverse mode allow no other."""
    differentiable = jax.custom_vjp(run)

    def forward(*values: Any) -> tuple[Any, Any]:
        def at(*values: Any) -> tuple[Any, Any]:
            varied, along = _differentiable_part(real, values)
            return jax.vjp(along, *varied)

        outputs, pullback = _simulate_call(at, *values)
        return outputs, (values, pullback)

    def backward(saved: Any, cotangents: Any) -> Any:
        values, pullback = saved
        pulled = iter(_simulate_call(lambda c: pullback(c), cotangents))
        return tuple(next(pulled) if is_inexact(x) else None for x in values)

    differentiable.defvjp(forward, backward)
    return differentiable


def _differentiable_part(f: Function, values: Sequence[Any]) -> tuple[list[Any], Function]:
    """The inexact values, and `f` as a function of them."""

    def along(*varied: Any) -> Any:
        rest = iter(varied)
        return f(*(next(rest) if is_inexact(x) else x for x in values))

    return [x for x in values if is_inexact(x)], along


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)


def holds(name: str, jaxpr: Jaxpr) -> bool:
    """Whether a program holds a primitive, at any depth."""
    return any(
        eqn.primitive.name == name or any(holds(name, p) for p in subprograms(eqn.params))
        for eqn in jaxpr.eqns
    )
