"""Taps whose values are not held: norms in the backward pass, and sums in a second pass.

Holding the values of a tap inside a user's `remat` would undo the remat. Instead, the backward pass
computes each example's norm at once and returns only its estimate and bound. When the coefficients
are known, a second pass recomputes the values and accumulates the weighted gradients. It runs the
whole loss again, or each remat by itself (`boundaries.py`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.arguments import Leaves
from bevel.clipping.norms.registry import SEPARATE
from bevel.clipping.program.batching import over_examples
from bevel.clipping.program.example_rows import ExampleRows
from bevel.clipping.program.trace import TracedExample, trace
from bevel.clipping.uses.find import Use
from bevel.clipping.uses.taps import TappedParameter, differentiate, lengths
from bevel.clipping.uses.views import pull_back
from bevel.sharding.axes import MeshLayout
from bevel.sharding.types import (
    as_varying,
    explicit_sharding,
    retyped,
    varying_axes,
    zeros_of_type,
)


def can_recompute(tap: TappedParameter) -> bool:
    """Whether the squared norms of all uses and loop steps of a parameter add."""
    if tap.overlapping or tap.shared_terms:
        return False
    plain = not any(use.in_branch or use.combinations for use in tap.uses)
    return plain and all(kind == SEPARATE for use in tap.uses for kind, _ in use.loops)


@dataclasses.dataclass(frozen=True)
class ReadNorm:
    """Reads the norm of each example's gradient, as (estimate, bound)."""

    way: str

    def sink(self, use: Use) -> jax.Array:
        aval: Any = use.eqn.outvars[0].aval
        zeros = jnp.zeros((*lengths(use), 2), precision.accumulation_dtype(aval.dtype))
        return as_varying(zeros, _axes_of(use))

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        def norms(values: Sequence[Any]) -> jax.Array:
            *h, g = values
            gradient = use.rule.gradient(use.eqn, use.operand, (), h, g)
            found = gradient.norm(self.way, True).norm
            # The second pass may round recomputed values differently.
            slack = 2 * precision.unit_roundoff(g.dtype)
            return jnp.stack([found.estimate, found.upper * (1 + slack)], axis=1)

        measured = _for_all_examples(norms, summed=False)
        return _with_sink(lambda h, g: measured(*h, g))(output, h, sink), []


class TouchValues:
    """Reads one number that depends on all values of a tap, as a weight gradient does."""

    def sink(self, use: Use) -> jax.Array:
        return as_varying(jnp.zeros(lengths(use)), _axes_of(use))

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        def touched(h: list[Any], g: Any) -> jax.Array:
            values = [_replicated(x) for x in (*h, g) if jnp.issubdtype(x.dtype, jnp.floating)]
            numbers = [jnp.vdot(x, x).astype(sink.dtype) for x in values]
            return sum(numbers[1:], numbers[0])

        return _with_sink(touched)(output, h, sink), []


@dataclasses.dataclass(frozen=True)
class ReadWeightedSum:
    """Reads the sum of the weighted gradients of all examples."""

    way: str
    factor: jax.Array
    keep: jax.Array

    def sink(self, use: Use) -> jax.Array:
        aval: Any = use.eqn.invars[use.operand].aval
        dtype = precision.accumulation_dtype(aval.dtype)
        return as_varying(jnp.zeros((*lengths(use), *aval.shape), dtype), _axes_of(use))

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        def total(values: Sequence[Any]) -> jax.Array:
            *h, factor, keep, g = values
            gradient = use.rule.gradient(use.eqn, use.operand, (), h, g)
            result = gradient.weighted_sum(factor, keep, self.way)
            return result.astype(sink.dtype)

        summed = _for_all_examples(total, summed=True)
        values = [*h, self.factor, self.keep]
        return _with_sink(lambda values, g: summed(*values, g))(output, values, sink), []


def recomputed_sums(
    loss: TracedExample,
    arguments: Leaves,
    taps: Sequence[TappedParameter],
    groups: Sequence[int],
    layout: MeshLayout,
) -> Callable[[Leaves, list[Any], Any], dict[int, Any]]:
    """Returns `f(values, factors, keep)`, which sums the weighted gradients of `taps`.

    `values` are the leaves of the batch, `factors` the coefficients of each group and `keep` the
    examples that count. `groups` is the group of each tap's parameter.
    """
    count = len(arguments.batch)
    uses = [(tap, use, group) for tap, group in zip(taps, groups, strict=True) for use in tap.uses]

    def one(leaves: Leaves) -> list[Any]:
        batch, (*factors, keep) = leaves.batch[:count], leaves.batch[count:]
        reads = [(use, ReadWeightedSum(tap.way, factors[group], keep)) for tap, use, group in uses]
        args = leaves._replace(batch=batch).flat()
        rows = ExampleRows.of(batch, layout)
        return [r.g for r in differentiate(loss.jaxpr, reads, [], args, rows=rows)[2]]

    def sums(values: Leaves, factors: list[Any], keep: Any) -> dict[int, Any]:
        more = [retyped(x, (), None) for x in (*factors, keep)]
        leaves = arguments._replace(batch=[*arguments.batch, *more])
        program = trace(one, leaves, loss.mesh, to_batch=True)
        # Make the batch depend on the coefficients. Otherwise the compiler would share the forward
        # pass with the first backward pass and keep all its values.
        batch = [jax.lax.optimization_barrier((x, factors[0]))[0] for x in values.batch]
        examples = [*batch, *factors, keep, *values.keys]
        run = over_examples(program.jaxpr, layout, summed=True)
        args = program.jaxpr.consts, values.params, examples, values.constants
        types = jax.eval_shape(run, *args)
        # Run in a branch that is always taken. Otherwise the loops of the two passes would share
        # their initial zeros, and the compiler would hold a copy of what they become.
        always = jax.lax.optimization_barrier(jnp.array(True))
        totals = jax.lax.cond(always, lambda: run(*args), lambda: [zeros_of_type(t) for t in types])
        return add_by_parameter(
            [(use, total) for (_, use, _), total in zip(uses, totals, strict=True)]
        )

    return sums


def add_by_parameter(totals: Sequence[tuple[Use, Any]]) -> dict[int, Any]:
    """The sums of parameters, from those of their uses."""
    sums = dict[int, Any]()
    for use, total in totals:
        own = pull_back(use.view, total)
        sums[use.param] = sums[use.param] + own if use.param in sums else own
    return sums


def _axes_of(use: Use) -> frozenset[str]:
    """The manual axes that a gradient may vary over: those of any value at the tap."""
    variables = (*use.eqn.invars, *use.eqn.outvars)
    return frozenset[str]().union(*(varying_axes(v.aval) for v in variables))


def _with_sink(reading: Callable[[list[Any], Any], jax.Array]) -> Callable[..., jax.Array]:
    """Returns `f(y, values, sink) = y`, where `sink` has cotangent `reading(values, cotangent)`."""

    @jax.custom_vjp
    def read(y: jax.Array, values: list[Any], sink: jax.Array) -> jax.Array:
        del values, sink
        return y

    def backward(values: list[Any], g: jax.Array) -> tuple[Any, None, jax.Array]:
        return g, None, reading(values, g)

    read.defvjp(lambda y, values, sink: (y, values), backward)
    return read


def _for_all_examples(
    function: Callable[[Sequence[Any]], jax.Array], summed: bool
) -> Callable[..., jax.Array]:
    """Returns a function that `jax.vmap` applies to all examples at once.

    `function` takes values with a leading example axis. With `summed`, its result has none.
    """

    @jax.custom_batching.custom_vmap
    def applied(*values: Any) -> jax.Array:
        # The program of one example, on Explicit axes: there a product of sharded values is an
        # error, but all examples together run on Auto axes.
        result = function([_replicated(x)[None] for x in values])
        return result if summed else result[0]

    @applied.def_vmap
    def _(size: int, batched: Sequence[bool], *values: Any) -> tuple[jax.Array, bool]:
        broadcast = [
            x if has else jnp.broadcast_to(x, (size, *x.shape))
            for x, has in zip(values, batched, strict=True)
        ]
        return function(broadcast), not summed

    return applied


def _replicated(x: jax.Array) -> jax.Array:
    """`x` with every dimension on every device, where its type is Explicit."""
    sharding = explicit_sharding(x)
    if sharding is None:
        return x
    return jax.sharding.reshard(x, jax.sharding.PartitionSpec(*(None,) * x.ndim))
