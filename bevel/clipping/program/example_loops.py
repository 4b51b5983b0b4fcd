"""Finds what a program runs one example at a time under `vmap`."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel.clipping.program.equations import depends_on
from bevel.clipping.program.isolation import SEQUENTIAL_METHODS, is_sequential
from bevel.sharding.axes import subprograms
from bevel.sharding.source_lines import SourceLine, line_of


@dataclasses.dataclass(frozen=True)
class ExampleLoop:
    """An operation that `vmap` runs in a loop over the examples."""

    operation: str
    line: SourceLine | None  # of the user's code

    def __str__(self) -> str:
        place = f" at {self.line}" if self.line else ""
        return f"{self.operation}{place} runs one example at a time"


def example_loops(program: ClosedJaxpr, examples: Sequence[Any]) -> list[ExampleLoop]:
    """The loops over the examples in a program that is about to be batched.

    `examples` are the inputs that differ between examples. What does not depend on them runs once.
    """
    dependent = depends_on(program.jaxpr, examples)
    eqns = [
        eqn
        for eqn in program.eqns
        if any(not isinstance(v, Literal) and v in dependent for v in eqn.invars)
    ]
    loops = (ExampleLoop(_name(eqn), line_of(eqn)) for eqn in _looped(eqns))
    return list(dict.fromkeys(loops))


def _looped(eqns: Sequence[JaxprEqn]) -> Iterator[JaxprEqn]:
    for eqn in eqns:
        if is_sequential(eqn) or eqn.params.get("vmap_method") in SEQUENTIAL_METHODS:
            yield eqn
        else:
            for inner in subprograms(eqn.params):
                yield from _looped(inner.eqns)


def _name(eqn: JaxprEqn) -> str:
    """The only primitive in the body of a loop, or the name of the function that makes loops."""
    if eqn.primitive.name != "custom_vmap_call":
        return str(eqn.primitive.name)
    body: Jaxpr = eqn.params["call"].jaxpr
    return str(body.eqns[0].primitive.name) if len(body.eqns) == 1 else "sequential_vmap"
