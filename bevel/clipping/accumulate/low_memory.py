"""The low-memory mode: nothing is held between the norms and the sum.

Within a user's `remat`, values kept from a tap would undo it. There the backward pass takes the
norm of each example at once and hands on two numbers, and when the coefficients are known a second
backward pass, which computes the same values again, adds up the weighted gradients as it goes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.arguments import Leaves
from bevel.clipping.program.batching import over_examples
from bevel.clipping.program.trace import TracedExample, trace
from bevel.clipping.uses.find import Use
from bevel.clipping.uses.taps import TappedParameter, differentiate, lengths
from bevel.clipping.uses.views import pull_back
from bevel.sharding.axes import MeshLayout
from bevel.sharding.types import as_varying, retyped, varying_axes, zeros_of_type


def can_do_again(tap: TappedParameter) -> bool:
    """One use, on its own slice in every loop: the norms of steps add up, and so do the sums."""
    alone = len(tap.uses) == 1 and not tap.uses[0].branched
    plain = not tap.uses[0].turns and not tap.common
    return alone and plain and all(kind == "separate" for kind, _ in tap.uses[0].loops)


@dataclasses.dataclass(frozen=True)
class ReadNorm:
    """Reads the norm of each example's gradient: its estimate and its bound."""

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
            # What is computed again may be rounded elsewhere.
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


def sums_again(
    loss: TracedExample,
    arguments: Leaves,
    taps: Sequence[TappedParameter],
    groups: Sequence[int],
    layout: MeshLayout,
) -> Callable[[Leaves, list[Any], Any], dict[int, Any]]:
    """`f(values of the batch, coefficients of each group, which count)`: sums of `taps`.

    `groups`: the group of each tap's parameter.
    """
    count = len(arguments.batch)

    def one(leaves: Leaves) -> list[Any]:
        batch, (*factors, keep) = leaves.batch[:count], leaves.batch[count:]
        reads = [
            (tap.uses[0], _ReadWeightedSum(tap.way, factors[group], keep))
            for tap, group in zip(taps, groups, strict=True)
        ]
        given = leaves._replace(batch=batch).flat()
        return [reading.g for reading in differentiate(loss.jaxpr, reads, [], given)[2]]

    def sums(values: Leaves, factors: list[Any], keep: Any) -> dict[int, Any]:
        if keep is None:
            keep = jnp.ones_like(factors[0], bool)
        more = [retyped(x, (), None) for x in (*factors, keep)]
        leaves = arguments._replace(batch=[*arguments.batch, *more])
        program = trace(one, leaves, loss.mesh, to_batch=True)
        # Behind the coefficients: else the compiler would share the forward pass with the first
        # backward pass, and keep all its values.
        batch = [jax.lax.optimization_barrier((x, factors[0]))[0] for x in values.batch]
        examples = [*batch, *factors, keep, *values.keys]
        run = over_examples(program.jaxpr, layout, summed=True)
        given = program.jaxpr.consts, values.params, examples, values.constants
        types = jax.eval_shape(run, *given)
        # A branch of its own, always taken: else the two passes would share the zeros that their
        # loops start from, and the compiler would hold a copy of what they become.
        always = jax.lax.optimization_barrier(jnp.array(True))
        found = jax.lax.cond(always, lambda: run(*given), lambda: [zeros_of_type(t) for t in types])
        return {
            tap.param: pull_back(tap.uses[0].route, total)
            for tap, total in zip(taps, found, strict=True)
        }

    return sums


def _axes_of(use: Use) -> frozenset[str]:
    """The manual axes over which a gradient may vary: those of any value at the tap."""
    variables = (*use.eqn.invars, *use.eqn.outvars)
    return frozenset[str]().union(*(varying_axes(v.aval) for v in variables))


def _with_sink(give: Callable[[list[Any], Any], jax.Array]) -> Callable[..., jax.Array]:
    """`f(y, values, sink)` is `y`; the cotangent of `sink` is `give(values, cotangent of y)`."""

    @jax.custom_vjp
    def read(y: jax.Array, values: list[Any], sink: jax.Array) -> jax.Array:
        del values, sink
        return y

    def backward(values: list[Any], g: jax.Array) -> tuple[Any, None, jax.Array]:
        return g, None, give(values, g)

    read.defvjp(lambda y, values, sink: (y, values), backward)
    return read


def _over_batch(total: Callable[[Sequence[Any]], jax.Array]) -> Callable[..., jax.Array]:
    """The sum over all examples, once `jax.vmap` has made a batch of them: no longer per example.

    `total` takes values with a leading example axis.
    """

    @jax.custom_batching.custom_vmap
    def summed(*values: Any) -> jax.Array:
        return total([x[None] for x in values])

    @summed.def_vmap
    def _(size: int, batched: Sequence[bool], *values: Any) -> tuple[jax.Array, bool]:
        spread = [
            x if has else jnp.broadcast_to(x, (size, *x.shape))
            for x, has in zip(values, batched, strict=True)
        ]
        return total(spread), False

    return summed
