"""Taps: read a parameter's gradient at its uses without forming it.

A tap returns the other operands `h`, and the output passes through an identity whose cotangent `g`
is read. The backward pass therefore computes no gradient of the parameter.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from bevel import precision
from bevel.clipping.accumulate.coefficients import norm_of_parts
from bevel.clipping.norms import MeasuredNorm, Norm, outer_product_norms
from bevel.clipping.norms.outer_products import (
    OuterProducts,
    Side,
    norm_of,
    unfinished_norm_of,
)
from bevel.clipping.norms.registry import SEPARATE
from bevel.clipping.norms.scaling import root, scale_back, scale_to_one
from bevel.clipping.norms.unfinished import UnfinishedNorm
from bevel.clipping.program.equations import bind
from bevel.clipping.program.example_rows import ExampleRows
from bevel.clipping.uses.boundaries import Boundary
from bevel.clipping.uses.find import Use
from bevel.clipping.uses.shared_terms import SharedTerm, SharedTermGradients
from bevel.clipping.uses.tapped_program import evaluate_tapped
from bevel.clipping.uses.views import dimensions, loops_of, pull_back, shape_of
from bevel.sharding.types import on_one_device, zeros_of_type


@dataclasses.dataclass(frozen=True)
class TappedParameter:
    """A parameter whose gradient is read at all its uses, and how its norm is computed."""

    param: int
    shape: tuple[int, ...]
    uses: tuple[Use, ...]
    way: str  # outer, gram, product or form
    rows: int  # how many outer products one example contributes
    overlapping: bool = False  # uses overlap, so their gradients add before the norm
    shared_terms: tuple[SharedTerm, ...] = ()
    # Hold nothing: compute the norm in the backward pass, and the sum in a second one.
    recompute: bool = False

    def gradients(
        self, read: Sequence["TapReading"], pieces: int = 1, params: Sequence[Any] = ()
    ) -> list[Any]:
        """The gradients of B examples at each use, not formed. With `recompute`, their norms.

        `params` are the values of all parameters, which combinations need.
        """
        if self.recompute:
            return [reading.g for reading in read]
        gradients = [
            use.gradient(reading.h, reading.g, params)
            for use, reading in zip(self.uses, read, strict=True)
        ]
        if self.overlapping:
            gradients = _with_one_multiplier(gradients)
        return [
            dataclasses.replace(g, pieces=pieces).padded() if isinstance(g, OuterProducts) else g
            for g in gradients
        ]

    def formed(self, gradients: Sequence[Any]) -> jax.Array:
        """The gradients (B, *parameter), formed. Those of a matrix may have trailing zeros."""
        if all(isinstance(gradient, OuterProducts) for gradient in gradients):
            return outer_product_norms.formed(self.aligned(gradients))
        pairs = zip(self.uses, gradients, strict=True)
        parts = [jax.vmap(lambda x, u=u: _to_parameter(u, x))(g.formed()) for u, g in pairs]
        return sum(parts[1:], parts[0])

    def unfinished_norms(self, gradients: Sequence[Any]) -> list[UnfinishedNorm]:
        """As `norms` without scaling, up to sums over all values where that is possible."""
        if isinstance(gradients[-1], SharedTermGradients):
            return [UnfinishedNorm(MeasuredNorm, tuple(m)) for m in self.norms(gradients, False)]
        if self.overlapping:
            return [unfinished_norm_of(self.aligned(gradients), self.way)]
        return [gradient.unfinished_norm(self.way) for gradient in gradients]

    def norms(self, gradients: Sequence[Any], scaled: bool) -> list[MeasuredNorm]:
        """Norms of the parameter's gradients, one for each disjoint part of the parameter."""
        if self.recompute:
            return [norm_from_steps(norms) for norms in gradients]
        (*gradients, last) = gradients
        terms = last if isinstance(last, SharedTermGradients) else None
        if terms is None:
            gradients = [*gradients, last]
        if self.overlapping:
            parts = [norm_of(self.aligned(gradients), self.way, scaled)]
        else:
            parts = [gradient.norm(self.way, scaled) for gradient in gradients]
        if terms is None:
            return parts
        norm = terms.norm(norm_of_parts([part.norm for part in parts]))
        sound = functools.reduce(operator.and_, [part.sound for part in parts])
        return [MeasuredNorm(norm, sound & jnp.isfinite(norm.upper))]

    def aligned(self, gradients: Sequence[OuterProducts]) -> list[OuterProducts]:
        """The gradients with the sides of all uses in the parameter's dimensions and order."""
        result = []
        first: frozenset[int | None] | None = None
        for use, gradient in zip(self.uses, gradients, strict=True):
            gradient = _in_dimensions(use, gradient, self.shape)
            left = frozenset(gradient.left_dims)
            first = left if first is None else first
            result.append(gradient if left == first else gradient.with_sides_swapped())
        return result

    def weighted_sum(self, gradients: Sequence[Any], factor: jax.Array, keep: Any) -> jax.Array:
        """The gradient of the parameter, summed over the examples with their coefficients."""
        pairs = zip(self.uses, gradients[: len(self.uses)], strict=True)
        sums = [
            _to_parameter(use, gradient.weighted_sum(factor, keep, self.way))
            for use, gradient in pairs
        ]
        sums += [terms.weighted_sum(factor, keep) for terms in gradients[len(self.uses) :]]
        return sum(sums[1:], sums[0])


def _with_one_multiplier(gradients: Sequence[OuterProducts]) -> list[OuterProducts]:
    """Gradients that add, all with the most exact multiplier among them."""
    best = max((g.multiplier for g in gradients), key=lambda m: (m.dtype.itemsize, -m.roundoff))

    def cast(side: Side) -> Side:
        if side.one_hot:
            return side
        return dataclasses.replace(side, values=side.values.astype(best.dtype))

    return [
        dataclasses.replace(g, left=cast(g.left), right=cast(g.right), multiplier=best)
        for g in gradients
    ]


def _to_parameter(use: Use, gradient: jax.Array) -> jax.Array:
    """A gradient whose leading dimensions are loops, in the shape of the parameter."""
    if use.combinations:
        (first, _), *_ = use.combinations
        steps = [length for kind, length in loops_of(use.leading_view) if kind == SEPARATE]
        gradient = gradient.reshape(*steps, *shape_of(first.eqn.invars[first.operand]))
    return pull_back(use.leading_view, gradient)


def norm_from_steps(norms: jax.Array) -> MeasuredNorm:
    """From the (estimate, bound) of each loop step, (B, loops..., 2), read in the backward pass."""
    parts = norms.reshape(norms.shape[0], -1, 2)
    scaled, e = scale_to_one(parts, (1,))
    total = scale_back(root(jnp.sum(scaled * scaled, axis=1)), e)
    slack = precision.rounding_growth(parts.shape[1] + 8, parts.dtype)
    sound = jnp.ones(norms.shape[:1], bool)
    return MeasuredNorm(Norm(total[:, 0], total[:, 1] * (1 + slack)), sound)


def _in_dimensions(use: Use, gradient: OuterProducts, shape: Sequence[int]) -> OuterProducts:
    """The gradient with its `dims` as dimensions of the parameter, ascending on both sides."""
    of_operand, _ = dimensions(use.leading_view, shape)
    if of_operand is None:
        raise ValueError("overlapping uses must have known dimensions")
    return gradient.with_dims(of_operand)


@dataclasses.dataclass
class TapReading:
    """The values read at one tap: the other operands and the cotangent of the output."""

    h: Sequence[Any]
    g: Any


jax.tree_util.register_dataclass(TapReading, ["h", "g"], [])


class TapReader(Protocol):
    """How a tap is read: through the cotangent of a sink that its output passes."""

    def sink(self, use: Use) -> Any: ...

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        """The output, and the values that the program returns."""
        ...


@jax.custom_vjp
def _read_cotangent(y: jax.Array, sink: jax.Array) -> jax.Array:
    """Returns `y`. The cotangent of `sink` is that of `y`."""
    del sink
    return y


_read_cotangent.defvjp(lambda y, sink: (y, None), lambda _, g: (_row_major(g),) * 2)


def _row_major(g: jax.Array) -> jax.Array:
    """A cotangent with its last dimension in consecutive memory, as kernels read it.

    Otherwise the compiler may lay out a loop's values for the sums over rows that biases need, and
    transpose the values of all layers before and after the loop.
    """
    return with_layout_constraint(g, Layout(tuple(range(g.ndim)))) if sets_layouts() else g


def sets_layouts() -> bool:
    """On one GPU, where transposing all layers takes several percent of a step."""
    return jax.default_backend() == "gpu" and on_one_device()


class HoldValues:
    """Holds `h` and `g` until the coefficients are known."""

    def sink(self, use: Use) -> jax.Array:
        return zeros_of_type(use.eqn.outvars[0].aval, lengths(use))

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        del use
        return _read_cotangent(output, sink), h


def lengths(use: Use) -> tuple[int, ...]:
    """The lengths of the loops around a use, which stack its readings."""
    return tuple(length for _, length in use.loops)


def differentiate(
    program: ClosedJaxpr,
    taps: Sequence[tuple[Use, TapReader]],
    materialised: Sequence[int],
    args: Sequence[Any],
    shared_terms: Sequence[SharedTerm] = (),
    boundaries: Sequence[Boundary] = (),
    save_products: bool = False,
    rows: ExampleRows | None = None,
) -> tuple[list[Any], list[Any], list[TapReading]]:
    """`(outputs, gradients of the inputs in materialised, readings)` of the first output.

    After those of the taps come the derivatives with respect to the shared terms, and then the
    inputs and cotangents of the boundaries. With `save_products`, remats save what the taps need.
    With `rows`, all values that are read stay with their examples.
    """
    tap_numbers = {use.path: i for i, (use, _) in enumerate(taps)}
    term_numbers = {term: len(taps) + i for i, term in enumerate(shared_terms)}
    first = len(taps) + len(shared_terms)
    tap_numbers |= {boundary.path: first + i for i, boundary in enumerate(boundaries)}
    sinks: dict[int, Any] = {
        i: jnp.zeros(term.shape, term.dtype) for term, i in term_numbers.items()
    }
    for i, boundary in enumerate(boundaries):
        with boundary.eqn.ctx.manager:
            outputs = [boundary.eqn.outvars[k].aval for k in boundary.outputs]
            sinks[first + i] = [zeros_of_type(aval, boundary.lengths) for aval in outputs]
    for i, (use, reader) in enumerate(taps):
        with use.eqn.ctx.manager:  # the mesh that the equation was traced under
            sinks[i] = reader.sink(use)

    def tied(x: Any) -> Any:
        return x if rows is None else rows.tied(x)

    def read(i: int, inputs: Sequence[Any], outputs: Sequence[Any], sink: Any) -> Any:
        outputs = [tied(y) for y in outputs]
        if i >= first:
            boundary = boundaries[i - first]
            for k, own in zip(boundary.outputs, sink, strict=True):
                outputs[k] = _read_cotangent(outputs[k], own)
            return outputs, [tied(inputs[j]) for j in boundary.examples]
        use, reader = taps[i]
        h = [tied(inputs[j]) for j in use.rule.others(use.eqn, use.operand)]
        output, values = reader.read(use, h, outputs[0], sink)
        return [output], values

    casts = _narrowing_casts(program, materialised)
    inputs = {i: bind(casts[i], [args[i]])[0] if i in casts else args[i] for i in materialised}

    def forward(own: dict[int, Any], sinks: dict[int, Any]) -> tuple[Any, Any]:
        values = [x if i in casts else own.get(i, x) for i, x in enumerate(args)]
        known = {id(eqn): own[i] for i, eqn in casts.items()}
        added = {term: sinks[i] for term, i in term_numbers.items()}
        outputs, h = evaluate_tapped(
            program, values, tap_numbers, sinks, read, known, added, save_products
        )
        return outputs[0], (outputs, h)

    (_, (outputs, h)), (gradients, cotangents) = jax.value_and_grad(
        forward, argnums=(0, 1), has_aux=True
    )(inputs, sinks)
    readings = [TapReading(h[i], cotangents[i]) for i in range(len(taps))]
    readings += [TapReading([], cotangents[i]) for i in term_numbers.values()]
    readings += [TapReading(h[first + i], cotangents[first + i]) for i in range(len(boundaries))]
    return outputs, [gradients[i] for i in materialised], readings


def _narrowing_casts(program: ClosedJaxpr, inputs: Sequence[int]) -> dict[int, JaxprEqn]:
    """The casts to fewer bits that are the only use of an input.

    The gradient has the same values before and after such a cast. It is taken after the cast,
    where it needs less memory.
    """
    jaxpr = program.jaxpr
    uses: dict[Any, list[JaxprEqn | None]] = {jaxpr.invars[i]: [] for i in inputs}
    for eqn in jaxpr.eqns:
        for var in {v for v in eqn.invars if not isinstance(v, Literal)} & set(uses):
            uses[var].append(eqn)
    for out in jaxpr.outvars:
        if not isinstance(out, Literal) and out in uses:
            uses[out].append(None)
    casts = {}
    for i in inputs:
        (only, *more) = uses[jaxpr.invars[i]] or [None]
        if only is None or more or only.primitive.name != "convert_element_type":
            continue
        avals: list[Any] = [v.aval for v in (jaxpr.invars[i], only.outvars[0])]
        before, after = (aval.dtype for aval in avals)
        if jnp.issubdtype(after, jnp.floating) and after.itemsize < before.itemsize:
            casts[i] = only
    return casts
