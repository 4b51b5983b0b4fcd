"""Norms in one pass, and a repair in place of the few examples for which one pass is not enough.

Norms are first computed without scaling, which reads all values once. The result shows for which
examples a square may have left the range of a float. For these, a loop that runs once or not at all
scales the values by powers of two and measures them again. It is a loop and not a branch, because
the compiler runs a loop in place: through a branch it would copy all values, and with the sums in
both branches it would compile them twice. On a CPU, the same loop measures the first time too, so
that norms are compiled once.
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
from bevel.sharding.types import as_varying, on_all_shards, varying_axes, zeros_of_type

Result = TypeVar("Result")
# A GPU waits longer after a loop than after a branch: 0.2 ms, which is a fifth of the step of an
# MLP. With values of at most so many elements, in so few leaves, a branch takes little memory, and
# compiling the sums in both branches takes little time.
FEW_LEAVES, FEW_ELEMENTS = 8, 2**27
_Measure = Callable[..., list[MeasuredNorm]]
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
        # Behind a barrier: else the compiler computes the coefficients once for each leaf.
        factors = [jax.lax.optimization_barrier(mask_examples(keep, x)) for x in factors]
        own = {leaf: scale_back(factors[of_leaf[leaf]], e) for leaf, e in self.exponents.items()}
        # Behind a barrier: else a GPU's compiler sums materialised gradients in the kernel that
        # scales the values of all taps, and that kernel reaches a third of its bandwidth.
        if any(map(varying_axes, own.values())):
            # A joint barrier would give all leaves the manual axes of each.
            return jax.tree.map(jax.lax.optimization_barrier, own)
        return jax.lax.optimization_barrier(own) if own else own


class _Stacked(NamedTuple):
    """For leaves whose norms are stacked, (N, B)."""

    exponents: jax.Array
    finite: jax.Array


class _Held(NamedTuple):
    arrays: list[jax.Array]
    exponents: dict[int, jax.Array]  # (B,), by leaf
    stacked: list[_Stacked]  # for each stack of norms
    of_vectors: list[Norm]


class _MeasuredState(NamedTuple):
    held: _Held
    norms: list[Norm]
    sound: list[jax.Array]  # which norms are valid, measured without scaling


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
    factored = FactoredArrays.of(gradients, leaves)
    args = padding, list(zip(vectors.values(), of_vectors, strict=True))
    places = list[tuple[int, ...]]()

    def measure(arrays: list[jax.Array], one_by_one: bool = True) -> list[MeasuredNorm]:
        own = gradients.with_values(factored.values(arrays))
        places[:], measured = _quick_norms(own, leaves, one_by_one)
        return measured

    def rescale(held: _Held, padding: Any, vectors: list[tuple[jax.Array, MeasuredNorm]]) -> _Held:
        tops = factored.tops(held.arrays)
        return _Held(
            factored.scaled(held.arrays, tops, padding, nan_safe),
            factored.exponents(tops),
            [_Stacked(*factored.stacked(own, tops)) for own in places],
            [_chosen(quick.sound, quick.norm, materialised_norm(x)) for x, quick in vectors],
        )

    def all_sound(sound: Sequence[jax.Array]) -> jax.Array:
        return _agreed([*(m.sound for m in of_vectors), *sound], batch_axes)

    def rest_of(state: _MeasuredState) -> Result:
        alone = [((leaf,), norm) for leaf, norm in zip(vectors, state.held.of_vectors, strict=True)]
        return rest(
            InRange(
                gradients.with_values(factored.values(state.held.arrays)),
                [*alone, *zip(places, state.norms, strict=True)],
                state.held.exponents,
            )
        )

    def start(found: list[MeasuredNorm]) -> _MeasuredState:
        lengths = [m.norm for m in of_vectors]
        stacks = [
            _Stacked(jnp.zeros_like(m.sound, np.int32), jnp.ones_like(m.sound)) for m in found
        ]
        held = _Held(factored.arrays, factored.unscaled(), stacks, lengths)
        return _MeasuredState(held, [m.norm for m in found], [m.sound for m in found])

    if takes_a_branch(len(leaves), sum(x.size for x in factored.arrays)):
        state = start(measure(factored.arrays, one_by_one=False))
        return jax.lax.cond(
            all_sound(state.sound),
            lambda: rest_of(state),
            lambda: rest_of(_again(measure, rescale, state, args)),
        )
    if measures_in_a_loop():
        return rest_of(_once_or_twice(measure, rescale, all_sound, start, factored.arrays, args))
    state = start(measure(factored.arrays, one_by_one=False))
    again = functools.partial(_again, measure, rescale)
    return rest_of(once_if(~all_sound(state.sound), again, state, args))


def takes_a_branch(leaves: int, elements: int) -> bool:
    """Whether so many leaves are repaired in a branch, which also has their sums."""
    small = leaves <= FEW_LEAVES and elements <= FEW_ELEMENTS
    return jax.default_backend() == "gpu" and small


def measures_in_a_loop() -> bool:
    """Whether the first norms are computed in the loop that may repair them.

    They are then compiled once. A GPU would wait for the loop a second time.
    """
    return jax.default_backend() == "cpu"


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


def _chosen(ok: jax.Array, old: Norm, new: Norm) -> Norm:
    return Norm(*(jnp.where(ok, *pair) for pair in zip(old, new, strict=True)))


def _agreed(sound: Sequence[jax.Array], batch_axes: Collection[str]) -> jax.Array:
    """Whether all examples are sound, the same on all shards that split an example."""
    everywhere = functools.reduce(operator.and_, [jnp.all(x) for x in sound])
    axes = tuple(sorted(varying_axes(everywhere) - set(batch_axes)))
    everywhere = jax.lax.pmin(everywhere.astype(np.int32), axes) > 0 if axes else everywhere
    return on_all_shards(everywhere)


def _with_norms(held: _Held, found: list[MeasuredNorm], state: _MeasuredState) -> _MeasuredState:
    """Replaces the norms that are not sound by those found for what is held now."""
    norms = []
    for (e, finite), ok, old, new in zip(
        held.stacked, state.sound, state.norms, found, strict=True
    ):
        upper = jnp.where(finite, scale_back(new.norm.upper, e), jnp.inf)
        norms.append(_chosen(ok, old, Norm(scale_back(new.norm.estimate, e), upper)))
    return _MeasuredState(held, norms, [m.sound for m in found])


def _again(
    measure: _Measure, rescale: Callable[..., _Held], state: _MeasuredState, args: Any
) -> _MeasuredState:
    held = rescale(state.held, *args)
    return _with_norms(held, measure(held.arrays), state)


def _once_or_twice(
    measure: _Measure,
    rescale: Callable[..., _Held],
    all_sound: Callable[[list[jax.Array]], jax.Array],
    start: Callable[[list[MeasuredNorm]], _MeasuredState],
    arrays: list[jax.Array],
    args: tuple[Any, ...],
) -> _MeasuredState:
    """The norms of what is held and, if some are not sound, those after `rescale`."""
    measure = jax.jit(measure)  # traced once, for its types and in the loop
    types = jax.eval_shape(measure, arrays)

    @jax.custom_jvp
    def run(state: _MeasuredState, args: Any) -> _MeasuredState:
        def turn(carry: tuple[Any, Any, _MeasuredState]) -> tuple[Any, Any, _MeasuredState]:
            _, is_second, state = carry
            held = once_if(is_second, rescale, state.held, *args)
            state = _with_norms(held, measure(held.arrays), state)
            return ~is_second & ~all_sound(state.sound), is_second | True, state

        first = jnp.array(True), jnp.array(False), state
        if any(varying_axes(x) for x in jax.tree.leaves((state, args))):
            first = _typed_as(first, jax.eval_shape(turn, first))
        return jax.lax.while_loop(lambda carry: carry[0], turn, first)[2]

    @run.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        # Reverse mode has no derivative of a loop whose number of steps is not known.
        def branch(state: _MeasuredState, args: Any) -> _MeasuredState:
            state = _with_norms(state.held, measure(state.held.arrays), state)
            again = functools.partial(_again, measure, rescale)
            return jax.lax.cond(all_sound(state.sound), lambda: state, lambda: again(state, args))

        return jax.jvp(branch, primals, tangents)

    return run(start(jax.tree.map(zeros_of_type, types)), args)


def _typed_as(values: Any, types: Any) -> Any:
    """The values, varying over the manual axes of `types`."""
    return jax.tree.map(lambda x, t: as_varying(x, varying_axes(t)), values, types)


def once_if(wanted: jax.Array, step: Callable[..., Any], state: Any, *args: Any) -> Any:
    """`step(state, *args)` if `wanted`, else `state`, which is not copied."""
    if any(varying_axes(x) for x in jax.tree.leaves((state, args))):
        state = _typed_as(state, jax.eval_shape(step, state, *args))

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
