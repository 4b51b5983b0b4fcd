"""The arrays that gradients are made of, which powers of two can be taken out of.

The gradient of a leaf is a sum of terms, and each term is linear in each of its arrays: `h` and `g`
of a tap, or a materialised gradient. An example's array is divided by 2**a. Its gradient is divided
by the product of these powers, which must be the same for all terms, because they add.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.accumulate.example_gradients import ExampleGradients
from bevel.clipping.accumulate.slices import layers_first
from bevel.clipping.norms.scaling import exponent, power_of_two
from bevel.clipping.uses.shared_terms import SharedTermGradients
from bevel.sharding.types import as_varying, varying_axes, zeros_of_type

# Sums of squares up to 2**LARGEST_SQUARE, with a largest entry of at least 2**SMALLEST_ENTRY, are
# in the range in which every norm is valid without scaling.
LARGEST_SQUARE, SMALLEST_ENTRY = 56, -24


class _Tops(NamedTuple):
    """The largest entries of the examples of an array, (B,)."""

    largest: jax.Array  # NaN or inf where the array is not finite
    exponent: jax.Array  # 0 where squares stay in range


class FactoredArrays(NamedTuple):
    """The arrays of some leaves, each array once."""

    leaves: list[int]
    arrays: list[jax.Array]
    terms: list[list[list[int]]]  # for each leaf, the numbers of the arrays of each term
    flat: list[tuple[Any, list[Any]]]  # for each leaf, its structure, and arrays by number
    # The arrays whose layers are read one by one. They are (layers, B, ...), because a loop over
    # layers has them in this order, and reordering them would copy all of them.
    layered: set[int]

    @classmethod
    def of(cls, gradients: ExampleGradients, leaves: Collection[int]) -> "FactoredArrays":
        """The arrays of `leaves`."""
        result, known = cls([], [], [], [], set()), dict[Any, int]()
        for leaf in leaves:
            values = gradients.values(leaf)
            arrays, structure = jax.tree.flatten(values)
            axes = frozenset[str]().union(*map(varying_axes, arrays))
            flat, terms = list[Any](arrays), []
            for term in _terms(values):
                for place in term:
                    # The first of two arrays may be shared by leaves. The last may not: its powers
                    # of two make those of all terms equal, on all manual axes that they vary over.
                    shared = place != term[-1]
                    key = id(arrays[place]) if shared else object()
                    flat[place] = known.setdefault(key, len(result.arrays))
                    if flat[place] == len(result.arrays):
                        own = arrays[place] if shared else as_varying(arrays[place], axes)
                        by_slice = gradients.by_slice(leaf)
                        result.arrays.append(layers_first(own) if by_slice else own)
                        result.layered.update([flat[place]] if by_slice else [])
                terms.append([flat[place] for place in term])
            result.leaves.append(leaf)
            result.terms.append(terms)
            result.flat.append((structure, flat))
        return result

    def values(self, arrays: Sequence[jax.Array]) -> dict[int, Any]:
        """The values of each leaf with other arrays."""
        arrays = [layers_first(x) if i in self.layered else x for i, x in enumerate(arrays)]
        return {
            leaf: jax.tree.unflatten(
                structure, [arrays[x] if isinstance(x, int) else x for x in flat]
            )
            for leaf, (structure, flat) in zip(self.leaves, self.flat, strict=True)
        }

    def scaled(
        self, arrays: Sequence[jax.Array], tops: Sequence[_Tops], padding: Any, nan_safe: bool
    ) -> list[jax.Array]:
        """Divides arrays whose largest entries are very large or small, so that they are near 1.

        Where arrays are not finite, they become zero if `nan_safe`. Those of padding always do.
        """
        # One array after the other, with the same operations: the compiler generates code once for
        # all arrays of one shape.
        added = dict[int, jax.Array]()
        for terms in self.terms:
            if len(terms) > 1:
                sums = [_sum([tops[i].exponent for i in term]) for term in terms]
                most = functools.reduce(jnp.maximum, sums)
                own = zip(terms, sums, strict=True)
                added |= {term[-1]: most - total for term, total in own}
        result = list[jax.Array]()
        for i, (x, top) in enumerate(zip(arrays, tops, strict=True)):
            axis = int(i in self.layered)
            x = x if axis else after(x, result[-1:])
            divided = _divided_or_zero(x, top.exponent, top.largest, padding, nan_safe, axis)
            if i in added:
                divided = _divided(divided, added[i], axis, steps=2)
            result.append(divided)
        return result

    def tops(self, arrays: Sequence[jax.Array]) -> list[_Tops]:
        """The largest entries in each array."""
        return [
            _tops_of(x, _limit(x.size // x.shape[axis]), axis)
            for i, x in enumerate(arrays)
            for axis in [int(i in self.layered)]
        ]

    def exponents(self, tops: Sequence[_Tops]) -> dict[int, jax.Array]:
        """By leaf: its gradients were divided by 2 to these, (B,)."""
        rows = [top.exponent for top in tops]
        pairs = zip(self.leaves, self.terms, strict=True)
        return {leaf: _exponent(terms, rows.__getitem__) for leaf, terms in pairs}

    def unscaled(self) -> dict[int, jax.Array]:
        """The `exponents` of arrays that were not divided: zeros."""
        types = jax.eval_shape(lambda arrays: self.exponents(self.tops(arrays)), self.arrays)
        return jax.tree.map(zeros_of_type, types)

    def stacked(self, leaves: Sequence[int], tops: Sequence[_Tops]) -> tuple[jax.Array, jax.Array]:
        """`exponents` of these leaves, and whether all their arrays were finite, both (N, B)."""
        terms = [self.terms[self.leaves.index(leaf)] for leaf in leaves]
        if len({tuple(map(len, own)) for own in terms}) > 1:
            alone = [self.stacked([leaf], tops) for leaf in leaves]
            exponents, finite = (jnp.concatenate(x) for x in zip(*alone, strict=True))
            return exponents, finite
        # Stacked before anything is computed: a few operations for all leaves.
        order = [[(t, k) for k in range(len(term))] for t, term in enumerate(terms[0])]
        rows = dict[tuple[int, int], list[jax.Array]]()
        for t, k in itertools.chain(*order):
            own = [tops[term[t][k]] for term in terms]
            rows[t, k] = [jnp.stack(x) for x in zip(*own, strict=True)]
        finite = functools.reduce(operator.and_, [jnp.isfinite(x) for x, _ in rows.values()])
        return _exponent(order, lambda place: rows[place][1]), finite


def _limit(entries: int) -> int:
    """The exponent from which on the squares of so many entries may leave the range."""
    return (LARGEST_SQUARE - math.ceil(math.log2(entries))) // 2


def _unless_in_range(largest: jax.Array, high: int) -> jax.Array:
    """The exponents of the largest entries, or 0 from 2**SMALLEST_ENTRY to 2**high."""
    e = exponent(largest)
    return jnp.where((e >= SMALLEST_ENTRY) & (e < high), jnp.zeros_like(e), e)


def _exponent(terms: Sequence[Sequence[Any]], top: Callable[[Any], jax.Array]) -> jax.Array:
    """The largest exponent of the terms of a leaf, from those of their arrays."""
    return functools.reduce(jnp.maximum, [_sum([top(i) for i in term]) for term in terms])


def after(values: Any, earlier: Any) -> Any:
    """The same values, available only after `earlier` are computed."""
    arrays = [x for x in jax.tree.leaves(earlier) if isinstance(x, jax.Array)]
    axes = {varying_axes(x) for x in (*arrays, *jax.tree.leaves(values))}
    if not arrays or len(axes) > 1:  # a barrier would give all values the manual axes of each
        return values
    # Without a gradient: JAX does not transpose a barrier of which some results are not used.
    return jax.lax.optimization_barrier((values, jax.lax.stop_gradient(arrays)))[0]


def _sum(values: Sequence[jax.Array]) -> jax.Array:
    return functools.reduce(operator.add, values)


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


@functools.partial(jax.jit, static_argnames=("limit", "axis"))
def _tops_of(x: jax.Array, limit: int, axis: int) -> _Tops:
    top = jnp.max(jnp.abs(x), axis=tuple(i for i in range(x.ndim) if i != axis))
    top = jax.lax.optimization_barrier(top.astype(precision.accumulation_dtype(x.dtype)))
    # Behind a barrier: else the compiler computes the exponents once for each of their uses.
    return _Tops(top, jax.lax.optimization_barrier(_unless_in_range(top, limit)))


# With `jit`, this is traced once for all arrays of one shape.
@functools.partial(jax.jit, static_argnames=("nan_safe", "axis"))
def _divided_or_zero(
    x: jax.Array, e: jax.Array, largest: jax.Array, padding: Any, nan_safe: bool, axis: int
) -> jax.Array:
    """`x` divided by 2**e, or zero for padding and, if `nan_safe`, what is not finite."""
    divided = _divided(x, e, axis)
    keep = jnp.isfinite(largest) if nan_safe else jnp.ones_like(largest, bool)
    if padding is not None:
        keep = keep & ~padding
    elif not nan_safe:
        return divided
    return jnp.where(_along(keep, x, axis), divided, jnp.zeros_like(divided))


@functools.partial(jax.jit, static_argnames=("axis", "steps"))
def _divided(x: jax.Array, e: jax.Array, axis: int, steps: int = 1) -> jax.Array:
    """`x` divided by 2**e (B,) along `axis`, for e up to `steps` times the largest exponent."""
    result = x.astype(precision.accumulation_dtype(x.dtype))
    limit = -jnp.finfo(result.dtype).minexp
    for _ in range(steps):
        part = jnp.clip(e, -limit, limit) if steps > 1 else e
        result = result * _along(power_of_two(-part, result.dtype), x, axis)
        e = e - part
    return result.astype(x.dtype)


def _along(values: jax.Array, like: jax.Array, axis: int) -> jax.Array:
    """`values` (B,) shaped to multiply `like`, whose examples are along `axis`."""
    return jnp.expand_dims(values, tuple(i for i in range(like.ndim) if i != axis))
