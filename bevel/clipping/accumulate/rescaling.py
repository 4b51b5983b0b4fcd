"""Norms in one pass, and a repair in place of the few examples for which one pass is not enough.

Norms are first computed without scaling, which reads all values once. The result shows for which
examples a square may have left the range of a float. For these, a loop that runs once or not at all
scales the values by powers of two and measures them again. It is a loop and not a branch, because
the compiler runs a loop in place: in a branch it would copy all values, and with the sums in both
branches it would compile them twice.

A gradient is linear in each of its arrays (`h` and `g` of a tap). An example's array is divided by
2**a, and its gradient is then multiplied by the powers of all its arrays, with its coefficient.
"""

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel import precision
from bevel.clipping.accumulate.coefficients import norm_of_parts
from bevel.clipping.accumulate.example_gradients import ExampleGradients
from bevel.clipping.norms import Norm
from bevel.clipping.norms.scaling import power_of_two, scale_back, top_exponent
from bevel.clipping.norms.weighting import mask_examples
from bevel.clipping.uses.shared_terms import SharedTermGradients
from bevel.sharding.types import as_varying, varying_axes


class InRange(NamedTuple):
    """Gradients whose values are finite, up to the powers of two by which they were divided."""

    gradients: ExampleGradients
    norms: dict[int, Norm]  # of the gradients before the division
    exponents: dict[int, jax.Array]  # (B,), by leaf


class _Measured(NamedTuple):
    arrays: list[jax.Array]
    norms: dict[int, Norm]
    exponents: dict[int, jax.Array]


def in_range(
    gradients: ExampleGradients,
    leaves: Collection[int],
    padding: jax.Array | None,
    nan_safe: bool,
    batch_axes: Collection[str],
) -> InRange:
    """The norms of `leaves`, and gradients that can be summed with coefficients of 0.

    Examples that are in range keep every bit of their values and norms, whatever the others are.
    The arrays of non-finite examples (if `nan_safe`) and of padding become zero where they are not.
    """
    norms, sound = _quick_norms(gradients, leaves)
    products = _Products(gradients, leaves, sound)

    def repair(state: _Measured, sound: dict[int, Any], padding: Any) -> _Measured:
        arrays, exponents, finite = products.scaled(state.arrays, sound, padding, nan_safe)
        again, _ = _quick_norms(products.gradients(arrays), leaves)
        for leaf, norm in again.items():
            upper = jnp.where(finite[leaf], scale_back(norm.upper, exponents[leaf]), jnp.inf)
            new = Norm(scale_back(norm.estimate, exponents[leaf]), upper)
            old = state.norms[leaf]
            again[leaf] = Norm(*(jnp.where(sound[leaf], a, b) for a, b in zip(old, new)))
        return _Measured(arrays, again, exponents)

    none = {leaf: jnp.where(ok, np.int32(0), np.int32(0)) for leaf, ok in sound.items()}
    everywhere = _agreed(functools.reduce(operator.and_, sound.values()), batch_axes)
    state = _once_if(~everywhere, repair, _Measured(products.arrays, norms, none), sound, padding)
    return InRange(products.gradients(state.arrays), state.norms, state.exponents)


def _quick_norms(
    gradients: ExampleGradients, leaves: Collection[int]
) -> tuple[dict[int, Norm], dict[int, jax.Array]]:
    """Norms without scaling, and for which examples they are valid."""
    quick = {leaf: gradients.quick_norms(leaf) for leaf in leaves}
    sound = {
        leaf: functools.reduce(operator.and_, [m.sound for m in parts])
        for leaf, parts in quick.items()
    }
    return {leaf: norm_of_parts([m.norm for m in parts]) for leaf, parts in quick.items()}, sound


def _agreed(sound: jax.Array, batch_axes: Collection[str]) -> jax.Array:
    """Whether all examples are sound, the same on all shards that split an example."""
    everywhere = jnp.all(sound)
    axes = tuple(sorted(varying_axes(everywhere) - set(batch_axes)))
    return jax.lax.pmin(everywhere.astype(np.int32), axes) > 0 if axes else everywhere


class _Products:
    """The arrays of some leaves, each once, and which of them are multiplied with each other."""

    def __init__(
        self, gradients: ExampleGradients, leaves: Collection[int], sound: dict[int, jax.Array]
    ):
        self.all, self.arrays = gradients, list[jax.Array]()
        self.readers = list[list[int]]()  # the leaves that read each array
        self.terms: dict[int, list[list[int]]] = {}  # array numbers, for each term of a leaf
        self.structures: dict[int, tuple[Any, list[Any]]] = {}
        known = dict[Any, int]()
        for leaf in leaves:
            flat, structure = jax.tree.flatten(gradients.values(leaf))
            terms = _terms(gradients.values(leaf))
            self.terms[leaf] = []
            for term in terms:
                numbers = []
                for place in term:
                    # The first of two factors may be shared by leaves, which must agree on the
                    # manual axes that its exponents vary over.
                    first = place == term[0] and len(term) > 1
                    key = (id(flat[place]), varying_axes(sound[leaf])) if first else object()
                    number = known.setdefault(key, len(self.arrays))
                    if number == len(self.arrays):
                        self.arrays.append(flat[place])
                        self.readers.append([])
                    self.readers[number].append(leaf)
                    numbers.append(number)
                self.terms[leaf].append(numbers)
            places = [place for term in terms for place in term]
            numbers = [number for term in self.terms[leaf] for number in term]
            own = dict(zip(places, numbers, strict=True))
            self.structures[leaf] = structure, [own.get(i, x) for i, x in enumerate(flat)]

    def gradients(self, arrays: Sequence[jax.Array]) -> ExampleGradients:
        """The gradients with other arrays."""
        return self.all.with_values(
            {
                leaf: jax.tree.unflatten(
                    structure, [arrays[x] if isinstance(x, int) else x for x in flat]
                )
                for leaf, (structure, flat) in self.structures.items()
            }
        )

    def scaled(
        self,
        arrays: Sequence[jax.Array],
        sound: dict[int, jax.Array],
        padding: jax.Array | None,
        nan_safe: bool,
    ) -> tuple[list[jax.Array], dict[int, jax.Array], dict[int, jax.Array]]:
        """Arrays near 1 where they were not in range, the leaves' exponents, and what is finite.

        All terms of a leaf get the same exponent, because they add.
        """
        fine = [functools.reduce(operator.and_, [sound[i] for i in own]) for own in self.readers]
        tops = [
            jnp.where(ok, np.int32(0), top_exponent(x)) for ok, x in zip(fine, arrays, strict=True)
        ]
        usable = [ok | _is_finite(x) for ok, x in zip(fine, arrays, strict=True)]
        divisors, exponents, finite = dict(enumerate(tops)), {}, {}
        for leaf, terms in self.terms.items():
            sums = [sum((tops[i] for i in term[1:]), tops[term[0]]) for term in terms]
            exponents[leaf] = functools.reduce(jnp.maximum, sums)
            for (*_, last), total in zip(terms, sums, strict=True):
                divisors[last] = tops[last] + (exponents[leaf] - total)
            own = [usable[i] for term in terms for i in term]
            finite[leaf] = functools.reduce(operator.and_, own)
        result = []
        for i, x in enumerate(arrays):
            keep = usable[i] if nan_safe else None
            if padding is not None:
                keep = ~padding if keep is None else keep & ~padding
            result.append(mask_examples(keep, _divided(x, divisors[i])))
        return result, exponents, finite


def _terms(gradients: Any) -> list[list[int]]:
    """Places in the flat gradients of one leaf: for each term, the arrays that are multiplied."""
    terms, start = list[list[int]](), 0
    for gradient in gradients if isinstance(gradients, list) else [gradients]:
        flat = jax.tree.leaves(gradient)
        places = [i for i, x in enumerate(flat) if jnp.issubdtype(x.dtype, jnp.floating)]
        if isinstance(gradient, SharedTermGradients):
            scales, derivatives = len(gradient.scales), len(gradient.derivatives)
            constant = range(scales, scales + derivatives)
            terms += [[start + i] for i in places if i not in constant]
        else:
            terms.append([start + i for i in places])
        start += len(flat)
    return terms


def _is_finite(x: jax.Array) -> jax.Array:
    """Whether each x[i] is finite."""
    return jnp.isfinite(jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)), initial=0))


def _divided(x: jax.Array, e: jax.Array) -> jax.Array:
    """`x` (B, ...) divided by 2**e, for e up to three times the largest exponent of a float."""
    wide = precision.accumulation_dtype(x.dtype)
    third = -e // 3
    result = x.astype(wide)
    for part in (third, third, -e - 2 * third):
        result = result * jnp.expand_dims(power_of_two(part, wide), tuple(range(1, x.ndim)))
    return result.astype(x.dtype)


def _once_if(wanted: jax.Array, step: Callable[..., Any], state: Any, *args: Any) -> Any:
    """`step(state, *args)` if `wanted`, else `state`, which is not copied."""
    types = jax.eval_shape(step, state, *args)
    state = jax.tree.map(lambda x, t: as_varying(x, varying_axes(t)), state, types)

    @jax.custom_jvp
    def run(wanted: jax.Array, state: Any, args: Any) -> Any:
        def body(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            return jnp.zeros_like(carry[0]), step(carry[1], *args)

        return jax.lax.while_loop(lambda carry: carry[0], body, (wanted, state))[1]

    @run.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        # Reverse mode has no derivative of a loop with an unknown number of steps.
        def branch(wanted: jax.Array, state: Any, args: Any) -> Any:
            return jax.lax.cond(wanted, lambda: step(state, *args), lambda: state)

        return jax.jvp(branch, primals, tangents)

    return run(wanted, state, args)
