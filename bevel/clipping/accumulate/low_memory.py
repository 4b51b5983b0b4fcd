"""Taps whose values are not held: norms in the backward pass, and sums in a second pass.

Holding the values of a tap inside a user's `remat` would undo the remat. Instead, the backward pass
computes each example's norm at once and returns only its estimate and bound. When the coefficients
are known, a second pass recomputes the values and accumulates the weighted gradients. It runs the
whole loss again, or each remat by itself (`second_pass.py`). It also measures what it sums, and
what is longer than the first pass found it does not enter the sum (`bounded_sums.py`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.accumulate.coefficients import norm_of_parts
from bevel.clipping.arguments import Leaves
from bevel.clipping.norms.registry import SEPARATE, Norm
from bevel.clipping.program.batching import over_examples
from bevel.clipping.program.example_rows import ExampleRows
from bevel.clipping.program.trace import TracedExample, trace
from bevel.clipping.uses.find import Use
from bevel.clipping.uses.taps import (
    TappedParameter,
    differentiate,
    lengths,
    norm_from_steps,
)
from bevel.clipping.uses.views import pull_back
from bevel.sharding.axes import MeshLayout
from bevel.sharding.types import (
    as_varying,
    explicit_sharding,
    retyped,
    varying_axes,
)


def can_recompute(tap: TappedParameter) -> bool:
    """Whether the squared norms of all uses and loop steps of a parameter add."""
    if tap.overlapping or tap.shared_terms:
        return False
    plain = not any(use.in_branch or use.combinations for use in tap.uses)
    return plain and all(kind == SEPARATE for use in tap.uses for kind, _ in use.loops)


# The weighted sum of each parameter, and the norms of its gradients as they were summed.
SumsAndNorms = tuple[dict[int, Any], dict[int, Norm]]


@dataclasses.dataclass(frozen=True)
class ReadNorm:
    """Reads the norm of each example's gradient, as (estimate, bound).

    The bound has a margin for values that a second pass rounds differently, so that it rarely has
    to run again. No guarantee depends on the margin.
    """

    way: str
    margin: float = 0.0  # in addition to two unit roundoffs of the model's dtype

    def sink(self, use: Use) -> jax.Array:
        return _sink_of_norms(use)

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        def norms(values: Sequence[Any]) -> jax.Array:
            *h, g = values
            gradient = use.rule.gradient(use.eqn, use.operand, (), h, g)
            found = gradient.norm(self.way, True).norm
            slack = 2 * precision.unit_roundoff(g.dtype) + self.margin
            return jnp.stack([found.estimate, found.upper * (1 + slack)], axis=1)

        measured = _for_all_examples(norms)
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
    """Reads the sum of the weighted gradients of all examples, and each gradient's norm.

    The norm is computed from the same values as the sum, and is that of a coefficient of 1.
    """

    way: str
    factor: jax.Array
    keep: jax.Array

    def sink(self, use: Use) -> list[jax.Array]:
        aval: Any = use.eqn.invars[use.operand].aval
        dtype = precision.accumulation_dtype(aval.dtype)
        total = as_varying(jnp.zeros((*lengths(use), *aval.shape), dtype), _axes_of(use))
        return [total, _sink_of_norms(use)]

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        def total_and_norms(values: Sequence[Any]) -> list[jax.Array]:
            *h, factor, keep, g = values
            # Behind a barrier: norm and sum must see the same numbers, rounded once.
            *h, g = map(jax.lax.optimization_barrier, (*h, g))
            gradient = use.rule.gradient(use.eqn, use.operand, (), h, g)
            norms = jnp.stack(gradient.norm(self.way, True).norm, axis=1)
            # One after the other, so that the copies of one of them exist at a time.
            gradient = available_after(gradient, norms)
            total = gradient.weighted_sum(factor, keep, self.way)
            return [total.astype(sink[0].dtype), norms.astype(sink[1].dtype)]

        summed = _for_all_examples(total_and_norms, summed=1)
        values = [*h, self.factor, self.keep]
        return _with_sink(lambda values, g: summed(*values, g))(output, values, sink), []


def recomputed_sums(
    loss: TracedExample,
    arguments: Leaves,
    taps: Sequence[TappedParameter],
    groups: Sequence[int],
    layout: MeshLayout,
) -> Callable[[Leaves, list[Any], Any], SumsAndNorms]:
    """Returns `f(values, factors, keep)`, which sums the weighted gradients of `taps`.

    `values` are the leaves of the batch, `factors` the coefficients of each group and `keep` the
    examples that count. `groups` is the group of each tap's parameter. With the sums come the norms
    of what was summed.
    """
    count = len(arguments.batch)
    uses = [(tap, use, group) for tap, group in zip(taps, groups, strict=True) for use in tap.uses]

    def one(leaves: Leaves) -> list[Any]:
        batch, (*factors, keep) = leaves.batch[:count], leaves.batch[count:]
        reads = [(use, ReadWeightedSum(tap.way, factors[group], keep)) for tap, use, group in uses]
        args = leaves._replace(batch=batch).flat()
        rows = ExampleRows.of(batch, layout)
        readings = differentiate(loss.jaxpr, reads, [], args, rows=rows)[2]
        return [reading.g[0] for reading in readings] + [reading.g[1] for reading in readings]

    def sums(values: Leaves, factors: list[Any], keep: Any) -> SumsAndNorms:
        more = [retyped(x, (), None) for x in (*factors, keep)]
        leaves = arguments._replace(batch=[*arguments.batch, *more])
        program = trace(one, leaves, loss.mesh, to_batch=True)
        # Make the batch depend on the coefficients. Otherwise the compiler would share the forward
        # pass with the first backward pass and keep all its values.
        batch = [available_after(x, factors[0]) for x in values.batch]
        examples = [*batch, *factors, keep, *values.keys]
        run = over_examples(program.jaxpr, layout, summed=len(uses))
        outputs = run(program.jaxpr.consts, values.params, examples, values.constants)
        totals, norms = outputs[: len(uses)], outputs[len(uses) :]
        read = zip(uses, totals, norms, strict=True)
        return add_by_parameter([(use, total, norm) for (_, use, _), total, norm in read])

    return sums


@jax.custom_jvp
def available_after(values: Any, earlier: Any) -> Any:
    """The same values, available only after `earlier` are computed."""
    return jax.lax.optimization_barrier((values, earlier))[0]


# JAX 0.12 cannot transpose a barrier if only some of its values have tangents.
@available_after.defjvp
def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return available_after(*primals), tangents[0]


def add_by_parameter(read: Sequence[tuple[Use, Any, Any]]) -> SumsAndNorms:
    """The sums and norms of parameters, from the sum and the norms (B, loops..., 2) of each use."""
    sums, norms = dict[int, Any](), dict[int, list[Norm]]()
    for use, total, norm in read:
        own = pull_back(use.view, total)
        sums[use.param] = sums[use.param] + own if use.param in sums else own
        norms.setdefault(use.param, []).append(norm_from_steps(norm).norm)
    return sums, {param: norm_of_parts(parts) for param, parts in norms.items()}


def _sink_of_norms(use: Use) -> jax.Array:
    """The sink of (estimate, bound) at each step of the loops around a use."""
    aval: Any = use.eqn.outvars[0].aval
    zeros = jnp.zeros((*lengths(use), 2), precision.accumulation_dtype(aval.dtype))
    return as_varying(zeros, _axes_of(use))


def _axes_of(use: Use) -> frozenset[str]:
    """The manual axes that a gradient may vary over: those of any value at the tap."""
    variables = (*use.eqn.invars, *use.eqn.outvars)
    return frozenset[str]().union(*(varying_axes(v.aval) for v in variables))


def _with_sink(reading: Callable[[list[Any], Any], Any]) -> Callable[..., jax.Array]:
    """Returns `f(y, values, sink) = y`, where `sink` has cotangent `reading(values, cotangent)`."""

    @jax.custom_vjp
    def read(y: jax.Array, values: list[Any], sink: Any) -> jax.Array:
        del values, sink
        return y

    def backward(values: list[Any], g: jax.Array) -> tuple[Any, None, Any]:
        return g, None, reading(values, g)

    read.defvjp(lambda y, values, sink: (y, values), backward)
    return read


def _for_all_examples(
    function: Callable[[Sequence[Any]], Any], summed: int = 0
) -> Callable[..., Any]:
    """Returns a function that `jax.vmap` applies to all examples at once.

    `function` takes values with a leading example axis. So do its results, after the first
    `summed` of them.
    """

    @jax.custom_batching.custom_vmap
    def applied(*values: Any) -> Any:
        # The program of one example, on Explicit axes: there a product of sharded values is an
        # error, but all examples together run on Auto axes.
        result = function([_replicated(x)[None] for x in values])
        if not summed:
            return result[0]
        return [*result[:summed], *(x[0] for x in result[summed:])]

    @applied.def_vmap
    def _(size: int, batched: Sequence[bool], *values: Any) -> tuple[Any, Any]:
        broadcast = [
            x if has else jnp.broadcast_to(x, (size, *x.shape))
            for x, has in zip(values, batched, strict=True)
        ]
        result = function(broadcast)
        return result, [i >= summed for i in range(len(result))] if summed else True

    return applied


def _replicated(x: jax.Array) -> jax.Array:
    """`x` with every dimension on every device, where its type is Explicit."""
    sharding = explicit_sharding(x)
    if sharding is None:
        return x
    return jax.sharding.reshard(x, jax.sharding.PartitionSpec(*(None,) * x.ndim))
