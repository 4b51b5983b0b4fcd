"""Taps: the uses of parameters whose gradients are never formed, and the program that reads them.

At a tap the other operands `h` are returned, and the output passes through an identity whose
cotangent `g` is read, so that no gradient of the parameter is computed in the backward pass.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from bevel import precision
from bevel.clipping.accumulate.coefficients import side_by_side
from bevel.clipping.norms import MeasuredNorm, Norm, outer_product_norms
from bevel.clipping.norms.outer_products import OuterProducts, Side, norm_of
from bevel.clipping.norms.registry import SEPARATE
from bevel.clipping.norms.scaling import root, scale_back, scale_to_one
from bevel.clipping.program.equations import bind
from bevel.clipping.uses.find import Use
from bevel.clipping.uses.shared_terms import SharedTerm, SharedTermGradients
from bevel.clipping.uses.tapped_program import evaluate_tapped
from bevel.clipping.uses.views import dimensions, loops_of, pull_back, shape_of
from bevel.sharding.types import zeros_of_type


@dataclasses.dataclass(frozen=True)
class TappedParameter:
    """One parameter whose gradient is read at all its uses, and how its norm is taken."""

    param: int
    shape: tuple[int, ...]
    uses: tuple[Use, ...]
    way: str  # outer, gram, product or form
    rows: int  # with how many rows one example enters
    joined: bool = False  # uses overlap: their gradients add before the norm
    common: tuple[SharedTerm, ...] = ()  # terms that are the same for every example
    again: bool = False  # not held: the norm is taken in the backward pass, the sum in a second one

    def gradients(
        self, read: Sequence["TapReading"], pieces: int = 1, params: Sequence[Any] = ()
    ) -> list[Any]:
        """The gradients of B examples at each use, not formed; norms only, if those are all.

        `params`: the values of all parameters, for uses behind products of them.
        """
        if self.again:
            return [reading.g for reading in read]
        made = [
            use.gradient(reading.h, reading.g, params)
            for use, reading in zip(self.uses, read, strict=True)
        ]
        if self.joined:
            made = _of_one_kind(made)
        return [
            dataclasses.replace(g, pieces=pieces).padded() if isinstance(g, OuterProducts) else g
            for g in made
        ]

    def formed(self, gradients: Sequence[Any]) -> jax.Array:
        """The gradients (B, *parameter), formed; those of a matrix may have zeros behind."""
        if all(isinstance(gradient, OuterProducts) for gradient in gradients):
            return outer_product_norms.formed(self.aligned(gradients))
        pairs = zip(self.uses, gradients, strict=True)
        parts = [jax.vmap(lambda x, u=u: _to_parameter(u, x))(g.formed()) for u, g in pairs]
        return sum(parts[1:], parts[0])

    def norms(self, gradients: Sequence[Any], scaled: bool) -> list[MeasuredNorm]:
        """Norms of the parameter's gradients, in parts that lie side by side."""
        if self.again:
            return [_measured_before(norms) for norms in gradients]
        (*gradients, last) = gradients
        terms = last if isinstance(last, SharedTermGradients) else None
        if terms is None:
            gradients = [*gradients, last]
        if self.joined:
            parts = [norm_of(self.aligned(gradients), self.way, scaled)]
        else:
            parts = [gradient.norm(self.way, scaled) for gradient in gradients]
        if terms is None:
            return parts
        norm = terms.norm(side_by_side([part.norm for part in parts]))
        sound = functools.reduce(operator.and_, [part.sound for part in parts])
        return [MeasuredNorm(norm, sound & jnp.isfinite(norm.upper))]

    def aligned(self, gradients: Sequence[OuterProducts]) -> list[OuterProducts]:
        """The same, with the sides of all uses in the parameter's dimensions and order."""
        result = []
        first: frozenset[int | None] | None = None
        for use, gradient in zip(self.uses, gradients, strict=True):
            gradient = _in_dimensions(use, gradient, self.shape)
            left = frozenset(gradient.left_places)
            first = left if first is None else first
            result.append(gradient if left == first else gradient.turned())
        return result

    def weighted_sum(self, gradients: Sequence[Any], factor: jax.Array, keep: Any) -> jax.Array:
        """The gradient of the parameter, summed over examples with their coefficients."""
        pairs = zip(self.uses, gradients[: len(self.uses)], strict=True)
        sums = [
            _to_parameter(use, gradient.weighted_sum(factor, keep, self.way))
            for use, gradient in pairs
        ]
        sums += [terms.weighted_sum(factor, keep) for terms in gradients[len(self.uses) :]]
        return sum(sums[1:], sums[0])


def _of_one_kind(made: Sequence[OuterProducts]) -> list[OuterProducts]:
    """Gradients that add, all multiplied as the most exact one of them is."""
    best = max((g.multiplier for g in made), key=lambda m: (m.dtype.itemsize, -m.roundoff))

    def wide(side: Side) -> Side:
        if side.unit:
            return side
        return dataclasses.replace(side, values=side.values.astype(best.dtype))

    return [
        dataclasses.replace(g, left=wide(g.left), right=wide(g.right), multiplier=best)
        for g in made
    ]


def _to_parameter(use: Use, gradient: jax.Array) -> jax.Array:
    """A gradient, behind the dimensions of loops, in the shape of the parameter."""
    if use.turns:
        (turn, _), *_ = use.turns
        steps = [length for kind, length in loops_of(use.start) if kind == SEPARATE]
        gradient = gradient.reshape(*steps, *shape_of(turn.eqn.invars[turn.operand]))
    return pull_back(use.start, gradient)


def _measured_before(norms: jax.Array) -> MeasuredNorm:
    """Of norms (B, loops..., 2) that the backward pass took."""
    parts = norms.reshape(norms.shape[0], -1, 2)
    scaled, e = scale_to_one(parts, (1,))
    total = scale_back(root(jnp.sum(scaled * scaled, axis=1)), e)
    slack = precision.rounding_growth(parts.shape[1] + 8, parts.dtype)
    sound = jnp.ones(norms.shape[:1], bool)
    return MeasuredNorm(Norm(total[:, 0], total[:, 1] * (1 + slack)), sound)


def _in_dimensions(use: Use, gradient: OuterProducts, shape: Sequence[int]) -> OuterProducts:
    """A gradient whose places are dimensions of the parameter, in rising order on either side."""
    of_operand, _ = dimensions(use.start, shape)
    if of_operand is None:
        raise ValueError("only uses whose dimensions are known can be joined")
    return gradient.relabelled(of_operand)


@dataclasses.dataclass
class TapReading:
    """What was read at one tap: the other operands and the cotangent of the output."""

    h: Sequence[Any]
    g: Any


jax.tree_util.register_dataclass(TapReading, ["h", "g"], [])


class _TapReader(Protocol):
    """How a tap is read: through the cotangent of a sink that its output passes by."""

    def sink(self, use: Use) -> jax.Array: ...

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        """The output, and the values that leave the program."""
        ...


@jax.custom_vjp
def _read_cotangent(y: jax.Array, sink: jax.Array) -> jax.Array:
    """`y`; the cotangent of `sink` is that of `y`."""
    del sink
    return y


_read_cotangent.defvjp(lambda y, sink: (y, None), lambda _, g: (g, g))


class HoldValues:
    """Keeps `h` and `g` until the coefficients are known."""

    def sink(self, use: Use) -> jax.Array:
        return zeros_of_type(use.eqn.outvars[0].aval, lengths(use))

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        del use
        return _read_cotangent(output, sink), h


def lengths(use: Use) -> tuple[int, ...]:
    """Of the loops around a use, which stack what is read there."""
    return tuple(length for _, length in use.loops)


def differentiate(
    program: ClosedJaxpr,
    taps: Sequence[tuple[Use, _TapReader]],
    kept: Sequence[int],
    args: Sequence[Any],
    common: Sequence[SharedTerm] = (),
) -> tuple[list[Any], list[Any], list[TapReading]]:
    """`(outputs, gradients of the kept inputs, readings)` of the program's first output.

    The derivatives by `common` numbers are the last readings.
    """
    numbers = {use.path: i for i, (use, _) in enumerate(taps)}
    behind = {c: len(taps) + i for i, c in enumerate(common)}
    sinks = {i: jnp.zeros(c.shape, c.dtype) for c, i in behind.items()}
    for i, (use, reader) in enumerate(taps):
        with use.eqn.ctx.manager:  # the mesh on which the equation stands
            sinks[i] = reader.sink(use)

    def read(i: int, inputs: Sequence[Any], output: Any, sink: Any) -> Any:
        use, reader = taps[i]
        h = [inputs[j] for j in use.rule.others(use.eqn, use.operand)]
        return reader.read(use, h, output, sink)

    casts = _narrowing_casts(program, kept)
    inputs = {i: bind(casts[i], [args[i]])[0] if i in casts else args[i] for i in kept}

    def forward(own: dict[int, Any], sinks: dict[int, Any]) -> tuple[Any, Any]:
        values = [x if i in casts else own.get(i, x) for i, x in enumerate(args)]
        given = {id(eqn): own[i] for i, eqn in casts.items()}
        added = {c: sinks[i] for c, i in behind.items()}
        outputs, leaving = evaluate_tapped(program, values, numbers, sinks, read, given, added)
        return outputs[0], (outputs, leaving)

    (_, (outputs, leaving)), (gradients, cotangents) = jax.value_and_grad(
        forward, argnums=(0, 1), has_aux=True
    )(inputs, sinks)
    readings = [TapReading(leaving[i], cotangents[i]) for i in range(len(taps))]
    readings += [TapReading([], cotangents[i]) for i in behind.values()]
    return outputs, [gradients[i] for i in kept], readings


def _narrowing_casts(program: ClosedJaxpr, kept: Sequence[int]) -> dict[int, JaxprEqn]:
    """The casts to fewer bits that are the only use of an input.

    The gradient is the same before and after the cast, and takes half of the memory after it.
    """
    jaxpr = program.jaxpr
    uses: dict[Any, list[JaxprEqn | None]] = {jaxpr.invars[i]: [] for i in kept}
    for eqn in jaxpr.eqns:
        for var in {v for v in eqn.invars if not isinstance(v, Literal)} & set(uses):
            uses[var].append(eqn)
    for out in jaxpr.outvars:
        if not isinstance(out, Literal) and out in uses:
            uses[out].append(None)
    found = {}
    for i in kept:
        (only, *more) = uses[jaxpr.invars[i]] or [None]
        if only is None or more or only.primitive.name != "convert_element_type":
            continue
        avals: list[Any] = [v.aval for v in (jaxpr.invars[i], only.outvars[0])]
        before, after = (aval.dtype for aval in avals)
        if jnp.issubdtype(after, jnp.floating) and after.itemsize < before.itemsize:
            found[i] = only
    return found
