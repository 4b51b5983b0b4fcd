"""Differentiate a simulated program as JAX differentiates the real one.

JAX first differentiates the program with the real `shard_map`, and the derivative is simulated. So
custom rules see the mesh, and what cannot be differentiated there raises the same error here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

from bevel.inspection.simulate.program import Context, evaluate
from bevel.sharding.axes import equations_in

Function = Callable[..., Any]


def simulated(program: ClosedJaxpr) -> Function:
    """`program` as a differentiable function of its constants and arguments."""
    count = len(program.consts)

    def real(*values: Any) -> list[Any]:
        return jax.core.eval_jaxpr(program.jaxpr, values[:count], *values[count:])

    def run(*values: Any) -> list[Any]:
        closed = ClosedJaxpr(program.jaxpr, values[:count])
        return evaluate(closed, values[count:], Context())

    if any(equations_in(program.jaxpr, "custom_vjp_call")):
        return _with_reverse_mode_of(real, run)
    return _with_forward_mode_of(real, run)


def _simulate_call(f: Function, *args: Any) -> Any:
    """`f(*args)` with every `shard_map` in it simulated."""
    program, shape = jax.make_jaxpr(f, return_shape=True)(*args)
    outputs = simulated(program)(*program.consts, *jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shape), outputs)


def _with_forward_mode_of(real: Function, run: Function) -> Function:
    """`run` with the derivative of `real`.

    Linearization gives two programs: a linear one without custom rules, and the rest, which is
    simulated with its own derivative. This also gives reverse mode and higher derivatives. A
    program that cannot be linearized, such as one with a `while_loop`, has only forward mode.
    """
    differentiable = jax.custom_jvp(run)

    @differentiable.defjvp
    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        inexact = [x for x in tangents if x.dtype != jax.dtypes.float0]
        linear: list[Jaxpr] = []

        def linearize(*primals: Any) -> tuple[Any, Any]:
            varied, function = _differentiable_part(real, primals)
            outputs, pushforward = jax.linearize(function, *varied)
            program = jax.make_jaxpr(pushforward)(*inexact)
            linear.append(program.jaxpr)
            return outputs, program.consts

        def jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
            varied, function = _differentiable_part(real, primals)
            return jax.jvp(function, tuple(varied), tuple(tangents))

        try:
            outputs, consts = _simulate_call(linearize, *primals)
        except ValueError as error:
            if "Linearization failed" not in str(error):
                raise
            return _simulate_call(jvp, tuple(primals), tuple(inexact))
        return outputs, evaluate(ClosedJaxpr(linear[0], consts), inexact, Context(linear=True))

    return differentiable


def _with_reverse_mode_of(real: Function, run: Function) -> Function:
    """`run` with the reverse mode of `real`. A `custom_vjp` allows no other mode."""
    differentiable = jax.custom_vjp(run)

    def forward(*values: Any) -> tuple[Any, Any]:
        def vjp(*values: Any) -> tuple[Any, Any]:
            varied, function = _differentiable_part(real, values)
            return jax.vjp(function, *varied)

        outputs, pullback = _simulate_call(vjp, *values)
        return outputs, (values, pullback)

    def backward(saved: Any, cotangents: Any) -> Any:
        values, pullback = saved
        gradients = iter(_simulate_call(lambda c: pullback(c), cotangents))
        return tuple(next(gradients) if is_inexact(x) else None for x in values)

    differentiable.defvjp(forward, backward)
    return differentiable


def _differentiable_part(f: Function, values: Sequence[Any]) -> tuple[list[Any], Function]:
    """The inexact values, and `f` as a function of them."""

    def function(*varied: Any) -> Any:
        remaining = iter(varied)
        return f(*(next(remaining) if is_inexact(x) else x for x in values))

    return [x for x in values if is_inexact(x)], function


def is_inexact(x: Any) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)
