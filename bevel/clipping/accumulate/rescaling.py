"""Norms in one pass, and a repair in place of the few examples for which one pass is not enough.

Norms are first computed without scaling, which reads all values once. The result shows for which
examples a square may have left the range of a float. For these, a loop that runs once or not at all
scales the values by powers of two and measures them again. It is a loop and not a branch, because
the compiler runs a loop in place: through a branch it would copy all values, and with the sums in
both branches it would compile them twice.
"""

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bevel.clipping.accumulate.example_gradients import ExampleGradients
from bevel.clipping.accumulate.factored_arrays import FactoredArrays, after
from bevel.clipping.norms import MeasuredNorm, Norm, materialised_norm, quick_norm
from bevel.clipping.norms.scaling import scale_back
from bevel.clipping.norms.unfinished import finish_together
from bevel.clipping.norms.weighting import mask_examples
from bevel.sharding.types import as_varying, varying_axes

Result = TypeVar("Result")
# A GPU waits longer after a loop than after a branch: 0.2 ms, which is a fifth of the step of an
# MLP. With values of at most so many elements, in so few leaves, a branch takes little memory, and
# compiling the sums in both branches takes little time.
FEW_LEAVES, FEW_ELEMENTS = 8, 2**27
LeafNorms = tuple[tuple[int, ...], Norm]  # leaves, and one row of norms (N, B) for each


class InRange(NamedTuple):
    """Gradients whose values are finite, up to the powers of two by which they were divided."""

    gradients: ExampleGradients
    norms: list[LeafNorms]  # of the gradients before the division
    exponents: dict[int, jax.Array]  # (B,), by leaf

    def factors(
        self, factors: Sequence[Any], keep: Any, of_leaf: Sequence[int]
    ) -> dict[int, jax.Array]:
        """The coefficients (B,) of each leaf: those of its group, times the powers of two."""
        factors = [mask_examples(keep, factor) for factor in factors]
        own = {leaf: scale_back(factors[of_leaf[leaf]], e) for leaf, e in self.exponents.items()}
        # Behind a barrier: else a GPU's compiler sums materialised gradients in the kernel that
        # scales the values of all taps, and that kernel reaches a third of its bandwidth.
        if any(map(varying_axes, own.values())):
            # A joint barrier would give all leaves the manual axes of each.
            return jax.tree.map(jax.lax.optimization_barrier, own)
        return jax.lax.optimization_barrier(own) if own else own


class _Held(NamedTuple):
    arrays: list[jax.Array]
    norms: list[Norm]
    largest: list[jax.Array]  # the largest entries (B,) of each array, before it was divided
    of_vectors: list[Norm]


def in_range(
    gradients: ExampleGradients,
    leaves: Collection[int],
    padding: jax.Array | None,
    nan_safe: bool,
    batch_axes: Collection[str],
    rest: Callable[[InRange], Result],
) -> Result:
    """`rest` of the norms of `leaves`, and of gradients that can be summed with coefficients of 0.

    Examples that are in range keep every bit of their values and norms, whatever the others are.
    Of the others, arrays that are not finite (if `nan_safe`) or belong to padding become zero.
    Vectors are only measured: their values stay as they are, and the result has no exponents.
    """
    if not leaves:
        return rest(InRange(gradients, [], {}))
    vectors = {leaf: gradients.values(leaf) for leaf in leaves if gradients.is_vector(leaf)}
    leaves = [leaf for leaf in leaves if leaf not in vectors]
    of_vectors = [quick_norm(x) for x in vectors.values()]
    places, measured = _quick_norms(gradients, leaves)
    sound = [m.sound for m in (*of_vectors, *measured)]
    factored = FactoredArrays.of(gradients, leaves)

    def repair(state: _Held, sound: list[jax.Array], padding: Any, vectors: list[Any]) -> _Held:
        first, sound = sound[: len(vectors)], sound[len(vectors) :]
        largest = factored.largest(state.arrays)
        arrays = factored.scaled(state.arrays, largest, padding, nan_safe)
        scaled = gradients.with_values(factored.values(arrays))
        again = _quick_norms(scaled, leaves, one_by_one=True)[1]
        norms = []
        for own, ok, old, new in zip(places, sound, state.norms, again, strict=True):
            e, fits = factored.stacked(own, largest)
            upper = jnp.where(fits, scale_back(new.norm.upper, e), jnp.inf)
            repaired = Norm(scale_back(new.norm.estimate, e), upper)
            norms.append(Norm(*(jnp.where(ok, *pair) for pair in zip(old, repaired, strict=True))))
        lengths = [
            Norm(*(jnp.where(ok, *pair) for pair in zip(old, materialised_norm(x), strict=True)))
            for ok, old, x in zip(first, state.of_vectors, vectors, strict=True)
        ]
        return _Held(arrays, norms, largest, lengths)

    # A largest entry of 1 stands for arrays that were not divided.
    ones = [jnp.ones_like(x) for x in jax.eval_shape(factored.largest, factored.arrays)]
    norms, lengths = ([m.norm for m in found] for found in (measured, of_vectors))
    state = _Held(factored.arrays, norms, ones, lengths)
    wanted, more = ~_agreed(sound, batch_axes), (sound, padding, list(vectors.values()))

    def rest_of(state: _Held) -> Result:
        alone = [((leaf,), norm) for leaf, norm in zip(vectors, state.of_vectors, strict=True)]
        return rest(
            InRange(
                gradients.with_values(factored.values(state.arrays)),
                [*alone, *zip(places, state.norms, strict=True)],
                factored.exponents(state.largest),
            )
        )

    if takes_a_branch(len(leaves), sum(x.size for x in factored.arrays)):
        return jax.lax.cond(wanted, lambda: rest_of(repair(state, *more)), lambda: rest_of(state))
    return rest_of(once_if(wanted, repair, state, *more))


def takes_a_branch(leaves: int, elements: int) -> bool:
    """Whether so many leaves are repaired in a branch, which also has their sums."""
    small = leaves <= FEW_LEAVES and elements <= FEW_ELEMENTS
    return jax.default_backend() == "gpu" and small


def _quick_norms(
    gradients: ExampleGradients, leaves: Collection[int], one_by_one: bool = False
) -> tuple[list[tuple[int, ...]], list[MeasuredNorm]]:
    """Norms without scaling, stacked, and the leaf of each row.

    With `one_by_one`, the temporaries of one leaf exist at a time.
    """
    pairs = list[tuple[int, Any]]()
    for leaf in leaves:
        # A loop over layers has the temporaries of one layer at a time anyway.
        if one_by_one and pairs and not gradients.by_slice(leaf):
            later = after(gradients.values(leaf), pairs[-1][1].sums)
            gradients = gradients.with_values({leaf: later})
        pairs += [(leaf, norm) for norm in gradients.unfinished_norms(leaf)]
    stacks = finish_together([norm for _, norm in pairs])
    places = [tuple(pairs[i][0] for i in stack.numbers) for stack in stacks]
    return places, [stack.measured for stack in stacks]


def _agreed(sound: Sequence[jax.Array], batch_axes: Collection[str]) -> jax.Array:
    """Whether all examples are sound, the same on all shards that split an example."""
    everywhere = functools.reduce(operator.and_, [jnp.all(x) for x in sound])
    axes = tuple(sorted(varying_axes(everywhere) - set(batch_axes)))
    return jax.lax.pmin(everywhere.astype(np.int32), axes) > 0 if axes else everywhere


def once_if(wanted: jax.Array, step: Callable[..., Any], state: Any, *args: Any) -> Any:
    """`step(state, *args)` if `wanted`, else `state`, which is not copied."""
    if any(varying_axes(x) for x in jax.tree.leaves((state, args))):
        types = jax.eval_shape(step, state, *args)
        state = jax.tree.map(lambda x, t: as_varying(x, varying_axes(t)), state, types)

    @jax.custom_jvp
    def run(wanted: jax.Array, state: Any, args: Any) -> Any:
        def body(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            return carry[0] & False, step(carry[1], *args)

        return jax.lax.while_loop(lambda carry: carry[0], body, (wanted, state))[1]

    @run.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        # Reverse mode has no derivative of a loop whose number of steps is not known.
        def branch(wanted: jax.Array, state: Any, args: Any) -> Any:
            return jax.lax.cond(wanted, lambda: step(state, *args), lambda: state)

        return jax.jvp(branch, primals, tangents)

    return run(wanted, state, args)
