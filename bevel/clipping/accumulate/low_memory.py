"""The low-memory mode, which holds nothing between the norms and the sum.

Holding the values of a tap inside a user's `remat` would undo the remat. Instead, the backward pass
computes each example's norm at once and returns only its estimate and bound. When the coefficients
are known, a second backward pass recomputes the values and accumulates the weighted gradients.
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
from bevel.clipping.program.trace import TracedExample, trace
from bevel.clipping.uses.find import Use
from bevel.clipping.uses.taps import TappedParameter, differentiate, lengths
from bevel.clipping.uses.views import pull_back
from bevel.sharding.axes import MeshLayout
from bevel.sharding.types import as_varying, retyped, varying_axes, zeros_of_type


def can_recompute(tap: TappedParameter) -> bool:
    """Whether a parameter has one use, with its own slice in every loop, so that norms add."""
    use, *others = tap.uses
    plain = not (others or use.in_branch or use.combinations or tap.shared_terms)
    return plain and all(kind == SEPARATE for kind, _ in use.loops)


@dataclasses.dataclass(frozen=True)
class ReadNorm:
    """Reads the norm of each example's gradient, as (estimate, bound)."""

    way: str

    def sink(self, use: Use) -> jax.Array:
        aval: Any = use.eqn.outvars[0].aval
        zeros = jnp.zeros((*lengths(use), 2), precision.accumulation_dtype(aval.dtype))
        return as_varying(zeros, _axes_of(use))

    def read(self, use: Use, h: list[Any], output: Any, sink: Any) -> tuple[Any, list[Any]]:
        def norm(h: list[Any], g: Any) -> jax.Array:
            one = [x[None] for x in h]
            gradient = use.rule.gradient(use.eqn, use.operand, (), one, g[None])
            found = gradient.norm(self.way, True).norm
            # The second pass may round recomputed values differently.
            slack = 2 * precision.unit_roundoff(g.dtype)
            return jnp.stack([found.estimate[0], found.upper[0] * (1 + slack)])

        return _with_sink(norm)(output, h, sink), []


@dataclasses.dataclass(frozen=True)
class _ReadWeightedSum:
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

        summed = _over_batch(total)
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

    def one(leaves: Leaves) -> list[Any]:
        batch, (*factors, keep) = leaves.batch[:count], leaves.batch[count:]
        reads = [
            (tap.uses[0], _ReadWeightedSum(tap.way, factors[group], keep))
            for tap, group in zip(taps, groups, strict=True)
        ]
        args = leaves._replace(batch=batch).flat()
        return [reading.g for reading in differentiate(loss.jaxpr, reads, [], args)[2]]

    def sums(values: Leaves, factors: list[Any], keep: Any) -> dict[int, Any]:
        if keep is None:
            keep = jnp.ones_like(factors[0], bool)
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
        return {
            tap.param: pull_back(tap.uses[0].view, total)
            for tap, total in zip(taps, totals, strict=True)
        }

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


def _over_batch(total: Callable[[Sequence[Any]], jax.Array]) -> Callable[..., jax.Array]:
    """Returns a function whose result under `jax.vmap` is the sum over all examples.

    `total` takes values with a leading example axis. Its result has none.
    """

    @jax.custom_batching.custom_vmap
    def summed(*values: Any) -> jax.Array:
        return total([x[None] for x in values])

    @summed.def_vmap
    def _(size: int, batched: Sequence[bool], *values: Any) -> tuple[jax.Array, bool]:
        broadcast = [
            x if has else jnp.broadcast_to(x, (size, *x.shape))
            for x, has in zip(values, batched, strict=True)
        ]
        return total(broadcast), False

    return summed
