"""The `jax.checkpoint`s of a program, and whether they offload values."""

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn

from bevel.clipping.program.equations import REMATS
from bevel.sharding.axes import equations_in


def remats(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The remat equations of a program, at any depth."""
    return (eqn for eqn in equations_in(jaxpr) if eqn.primitive.name in REMATS)


def offloads(remat: JaxprEqn) -> bool:
    """Whether the policy of a remat moves values to the host."""
    policy, body = remat.params.get("policy"), remat.params["jaxpr"]
    if policy is None:
        return False
    decisions = (
        policy(eqn.primitive, *(v.aval for v in eqn.invars), **eqn.params)
        for eqn in equations_in(getattr(body, "jaxpr", body))
    )
    return any(type(decision).__name__ == "Offloadable" for decision in decisions)
