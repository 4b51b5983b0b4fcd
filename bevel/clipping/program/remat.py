"""The `jax.checkpoint`s of a program, and whether they offload values."""

from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn

from bevel.clipping.program.equations import REMATS
from bevel.sharding.axes import equations_in


def remats(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The remat equations of a program, at any depth."""
    return (eqn for eqn in equations_in(jaxpr) if eqn.primitive.name in REMATS)


def offloads(jaxpr: Jaxpr) -> bool:
    """Whether a policy of a remat moves values to the host, which only that remat can do."""
    return any(
        type(decision).__name__ == "Offloadable"
        for remat in remats(jaxpr)
        if (policy := remat.params.get("policy")) is not None
        for eqn in remat.params["jaxpr"].eqns
        for decision in [policy(eqn.primitive, *(v.aval for v in eqn.invars), **eqn.params)]
    )
