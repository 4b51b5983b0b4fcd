"""Boundaries: the inputs and outputs of the user's remats, around the taps inside them.

`jax.checkpoint` saves the inputs of a remat. If the cotangents of its outputs are held too, each
remat can be differentiated again by itself, with no other backward pass.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel.clipping.program.equations import REMATS, body_of_call, scan_counts

Path = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Boundary:
    """An outermost remat: the equation at `path`, in loops of these lengths."""

    path: Path
    eqn: JaxprEqn
    lengths: tuple[int, ...]
    examples: tuple[int, ...]  # the inputs that may depend on the example
    outputs: tuple[int, ...]  # those that have cotangents

    def contains(self, path: Path) -> bool:
        """Whether an equation is inside the remat."""
        return path[: len(self.path)] == self.path

    @property
    def body(self) -> ClosedJaxpr:
        body = self.eqn.params["jaxpr"]
        return body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())


def find_boundaries(
    jaxpr: Jaxpr, known: Sequence[bool], path: Path = (), lengths: tuple[int, ...] = ()
) -> list[Boundary]:
    """The outermost remats of a program, through calls and scans.

    `known` says which inputs are the same for every example.
    """
    return list(_find(jaxpr, known, path, lengths))


def _find(
    jaxpr: Jaxpr, known: Sequence[bool], path: Path, lengths: tuple[int, ...]
) -> Iterator[Boundary]:
    shared = _shared_variables(jaxpr, known)
    for eqn in jaxpr.eqns:
        here = (*path, id(eqn))
        flags = [isinstance(v, Literal) or v in shared for v in eqn.invars]
        body = body_of_call(eqn)
        if eqn.primitive.name in REMATS:
            outputs = [i for i, v in enumerate(eqn.outvars) if _has_cotangent(v)]
            examples = [i for i, flag in enumerate(flags) if not flag]
            yield Boundary(here, eqn, lengths, tuple(examples), tuple(outputs))
        elif body is not None:
            yield from _find(body.jaxpr, flags, here, lengths)
        elif eqn.primitive.name == "scan":
            flags = shared_in_scan(eqn, flags)
            inner = eqn.params["jaxpr"]
            inner = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
            yield from _find(inner, flags, here, (*lengths, eqn.params["length"]))


def _has_cotangent(var: Any) -> bool:
    return bool(jax.numpy.issubdtype(var.aval.dtype, jax.numpy.inexact))


def _shared_variables(jaxpr: Jaxpr, known: Sequence[bool]) -> set[Any]:
    """The variables that are the same for every example: all that they depend on is."""
    shared = {v for v, flag in zip(jaxpr.invars, known, strict=True) if flag}
    shared |= set(jaxpr.constvars)
    for eqn in jaxpr.eqns:
        flags = [isinstance(v, Literal) or v in shared for v in eqn.invars]
        body = body_of_call(eqn)
        if all(flags):
            shared |= set(eqn.outvars)
        elif body is not None:
            inner = _shared_variables(body.jaxpr, flags)
            pairs = zip(eqn.outvars, body.jaxpr.outvars, strict=True)
            shared |= {v for v, own in pairs if isinstance(own, Literal) or own in inner}
    return shared


def shared_in_scan(eqn: JaxprEqn, flags: Sequence[bool]) -> list[bool]:
    """Which inputs of a scan's body are the same for every example, in all iterations."""
    consts, carry = scan_counts(eqn)
    body = eqn.params["jaxpr"]
    body = body.jaxpr if isinstance(body, ClosedJaxpr) else body
    flags = list(flags)
    while True:
        shared = _shared_variables(body, flags)
        after = [isinstance(v, Literal) or v in shared for v in body.outvars[:carry]]
        before = flags[consts : consts + carry]
        both = [a and b for a, b in zip(before, after, strict=True)]
        if both == before:
            return flags
        flags[consts : consts + carry] = both
