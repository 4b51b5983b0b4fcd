"""Finds dropout whose mask is the same for every example.

A mask that is drawn from a key of the model, instead of the key that each example gets, is a
constant of the program: all examples drop the same features and, in a trainer, at every step. Only
masks are found, that is, random booleans that select between values of an example: a fixed random
projection is drawn from a constant key on purpose.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from bevel.clipping.program.equations import body_run_once, opened, scan_counts
from bevel.sharding.source_lines import SourceLine, line_of

DRAWS = {"random_bits", "threefry2x32", "rng_bit_generator"}
# How often a loop is walked until what it carries no longer changes.
PASSES = 3


class _Origin(NamedTuple):
    """What a value depends on."""

    example: bool = False  # the data or key of an example
    drawn: bool = False  # random bits that no example's key or data enters


class _MaskFoundError(Exception):
    def __init__(self, line: SourceLine | None) -> None:
        self.line = line


class SharedMask(NamedTuple):
    """The line at which all examples are masked alike, if it is known."""

    line: SourceLine | None

    def __str__(self) -> str:
        return "" if self.line is None else f" at {self.line}"


def find_shared_mask(program: ClosedJaxpr, examples: Sequence[int]) -> SharedMask | None:
    """Finds a mask that all examples share, or returns None.

    `examples` are the numbers of the inputs that differ between examples: data and keys.
    """
    inputs = [_Origin(example=k in examples) for k in range(len(program.jaxpr.invars))]
    try:
        _walk(program.jaxpr, inputs)
    except _MaskFoundError as found:
        return SharedMask(found.line)
    except Exception:  # a form of a primitive that is not expected
        return None
    return None


def _walk(jaxpr: Jaxpr, inputs: Sequence[_Origin]) -> list[_Origin]:
    origins: dict[Any, _Origin] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> _Origin:
        return _Origin() if isinstance(atom, Literal) else origins.get(atom, _Origin())

    for eqn in jaxpr.eqns:
        found = _outputs(eqn, [read(atom) for atom in eqn.invars])
        origins.update(zip(eqn.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _outputs(eqn: JaxprEqn, inputs: list[_Origin]) -> list[_Origin]:
    name, body = eqn.primitive.name, body_run_once(eqn)
    if body is not None:
        return _at_call(eqn, body, inputs)
    if name == "scan":
        consts, carried = scan_counts(eqn)
        body = opened(eqn.params["jaxpr"])
        for _ in range(PASSES):
            found = _walk(body, inputs)
            carry = inputs[consts : consts + carried]
            inputs[consts : consts + carried] = map(_joined, zip(carry, found, strict=False))
        return found
    if name == "cond":
        branches = [_walk(opened(branch), inputs[1:]) for branch in eqn.params["branches"]]
        return [_joined(several) for several in zip(*branches, strict=True)]
    masks = name == "select_n" and _is_mask(eqn.invars[0]) and _is_shared(inputs[0])
    if masks and any(origin.example for origin in inputs[1:]):
        raise _MaskFoundError(line_of(eqn))
    whole = _joined(inputs)
    if name in DRAWS and not whole.example:
        whole = _Origin(drawn=True)
    return [whole for _ in eqn.outvars]


def _at_call(eqn: JaxprEqn, body: Jaxpr, inputs: list[_Origin]) -> list[_Origin]:
    """Walks a body. The line of a library's function is that of its call."""
    try:
        return _walk(body, inputs)
    except _MaskFoundError as found:
        debug = getattr(body, "debug_info", None)
        if "site-packages" in (getattr(debug, "func_src_info", "") or ""):
            raise _MaskFoundError(line_of(eqn)) from found
        raise


def _joined(origins: Sequence[_Origin]) -> _Origin:
    return _Origin(any(o.example for o in origins), any(o.drawn for o in origins))


def _is_shared(origin: _Origin) -> bool:
    return origin.drawn and not origin.example


def _is_mask(atom: Any) -> bool:
    return bool(getattr(atom.aval, "dtype", None) == jnp.bool_)
