"""Taps: where a parameter meets an example in an equation that has a norm rule.

The program is walked once. A parameter is tapped if it has one use, possibly behind casts,
transposes, reshapes and constraints, and that use has a rule. At a tap the other operand `h` is
returned, and the output passes through an identity whose cotangent `g` is read, so that no gradient
of the parameter is computed in the backward pass. Every other parameter is differentiated by JAX
itself, through any program and by every custom rule, so there is nothing to support or to miss.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from bevel.clipping.equations import bind, depends_on, evaluate
from bevel.clipping.norms import Norm, Rule, rule_for
from bevel.sharding.types import zeros_of_type

# Equations that pass a parameter on, norm unchanged.
IDENTITIES = {"convert_element_type", "copy", "copy_p", "sharding_constraint", "reshard"}


@dataclasses.dataclass(frozen=True)
class Tap:
    """One use of parameter number `param`: operand `operand` of `eqn`, reached over `chain`."""

    param: int
    eqn: JaxprEqn
    operand: int
    chain: tuple[JaxprEqn, ...]
    rule: Rule

    @property
    def rows(self) -> int:
        """With how many rows one example enters."""
        return self.rule.rows(self.eqn, self.operand)

    def norm(self, h: jax.Array, g: jax.Array) -> Norm:
        """Norms of the examples' gradients, from the other operand and the cotangent."""
        return self.rule.norm(self.eqn, self.operand, h, g)

    def weighted_sum(self, h: jax.Array, g: jax.Array) -> jax.Array:
        """The gradient of the parameter, summed over examples; `g` carries the coefficients."""
        return self.to_param(self.rule.weighted_sum(self.eqn, self.operand, h, g))

    def to_param(self, gradient: jax.Array) -> jax.Array:
        """Carries a gradient from the operand back to the parameter."""
        for eqn in reversed(self.chain):
            if eqn.primitive.name == "transpose":
                gradient = jnp.transpose(gradient, tuple(np.argsort(eqn.params["permutation"])))
            else:
                before: Any = eqn.invars[0].aval
                gradient = gradient.reshape(before.shape)
        return gradient


def find_taps(program: ClosedJaxpr, params: int) -> list[Tap]:
    """The taps of a program whose first `params` inputs are parameters."""
    jaxpr = program.jaxpr
    chains: dict[Any, tuple[int, tuple[JaxprEqn, ...]]] = {
        var: (i, ()) for i, var in enumerate(jaxpr.invars[:params])
    }
    from_example = depends_on(jaxpr, jaxpr.invars[params:])
    uses: dict[int, list[Tap | None]] = {i: [] for i in range(params)}
    for eqn in jaxpr.eqns:
        meets_example = any(v in from_example for v in eqn.invars if not isinstance(v, Literal))
        for position, var in enumerate(eqn.invars):
            if isinstance(var, Literal) or var not in chains:
                continue
            param, chain = chains[var]
            if passes_on(eqn):
                chains[eqn.outvars[0]] = (param, (*chain, eqn))
                continue
            rule = rule_for(eqn.primitive.name)
            if rule is not None and meets_example and rule.accepts(eqn, position):
                uses[param].append(Tap(param, eqn, position, chain, rule))
            else:
                uses[param].append(None)
    for var in jaxpr.outvars:
        if not isinstance(var, Literal) and var in chains:
            uses[chains[var][0]].append(None)
    return [found[0] for found in uses.values() if len(found) == 1 and found[0] is not None]


def passes_on(eqn: JaxprEqn) -> bool:
    """Whether an equation hands a parameter on as a rearrangement of itself."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        aval: Any = eqn.outvars[0].aval
        return bool(jnp.issubdtype(aval.dtype, jnp.floating))
    if name == "reshape":
        return eqn.params["dimensions"] is None  # else it permutes as well
    return name in IDENTITIES or name in ("squeeze", "expand_dims", "transpose")


@jax.custom_vjp
def read_cotangent(y: jax.Array, sink: jax.Array) -> jax.Array:
    """`y`; the cotangent of `sink` is that of `y`."""
    del sink
    return y


read_cotangent.defvjp(lambda y, sink: (y, None), lambda _, g: (g, g))


def differentiate(
    program: ClosedJaxpr, taps: Sequence[Tap], params: Sequence[Any], rest: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """`(outputs, kept gradients, h per tap, g per tap)` of the program's first output, a scalar."""
    tapped = {tap.param for tap in taps}
    kept = {i: x for i, x in enumerate(params) if i not in tapped}
    sinks = []
    for tap in taps:
        with tap.eqn.ctx.manager:  # the mesh on which the equation stands
            sinks.append(zeros_of_type(tap.eqn.outvars[0].aval))
    order = {id(tap.eqn): i for i, tap in enumerate(taps)}

    def forward(kept: dict[int, Any], sinks: list[Any]) -> tuple[Any, Any]:
        others: dict[int, Any] = {}

        def handle(eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
            outputs = bind(eqn, inputs)
            i = order.get(id(eqn))
            if i is None:
                return outputs
            others[i] = inputs[1 - taps[i].operand]
            return [read_cotangent(outputs[0], sinks[i])]

        values = [kept.get(i, x) for i, x in enumerate(params)]
        outputs = evaluate(program.jaxpr, program.consts, (*values, *rest), handle)
        return outputs[0], (outputs, [others[i] for i in range(len(taps))])

    (_, (outputs, others)), (gradients, cotangents) = jax.value_and_grad(
        forward, argnums=(0, 1), has_aux=True
    )(kept, sinks)
    return outputs, list(gradients.values()), others, cotangents
