"""The `jax.checkpoint`s of a program: where they are, and the same program without them."""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.extend.core.primitives import closed_call_p

from bevel.clipping.program.equations import REMATS
from bevel.sharding.axes import subprograms


def remats(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """The remat equations of a program, at any depth."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in REMATS:
            yield eqn
        for inner in subprograms(eqn.params):
            yield from remats(inner)


def offloads(jaxpr: Jaxpr) -> bool:
    """Whether a policy of a remat moves values to the host, which only that remat can do."""
    return any(
        type(decision).__name__ == "Offloadable"
        for remat in remats(jaxpr)
        if (policy := remat.params.get("policy")) is not None
        for eqn in remat.params["jaxpr"].eqns
        for decision in [policy(eqn.primitive, *(v.aval for v in eqn.invars), **eqn.params)]
    )


def without_remat(body: Any) -> Any:
    """A program, or a tuple of programs, in which remats are ordinary calls."""
    if isinstance(body, tuple | list):
        bodies = [without_remat(b) for b in body]
        if all(new is old for new, old in zip(bodies, body, strict=True)):
            return body
        return type(body)(*bodies) if hasattr(body, "_fields") else type(body)(bodies)
    if not isinstance(body, Jaxpr | ClosedJaxpr):
        return body
    jaxpr = body if isinstance(body, Jaxpr) else body.jaxpr
    if not any(True for _ in remats(jaxpr)):
        return body
    jaxpr = jaxpr.replace(eqns=[_without_remat(eqn) for eqn in jaxpr.eqns])
    return jaxpr if isinstance(body, Jaxpr) else ClosedJaxpr(jaxpr, body.consts)


def _without_remat(eqn: JaxprEqn) -> JaxprEqn:
    changed = {key: without_remat(value) for key, value in eqn.params.items()}
    if eqn.primitive.name in REMATS:
        body = changed["jaxpr"]
        closed = body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())
        return eqn.replace(primitive=closed_call_p, params={"call_jaxpr": closed})
    if all(changed[key] is value for key, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=changed)
