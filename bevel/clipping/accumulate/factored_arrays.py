"""The arrays that gradients are made of, which powers of two can be taken out of.

The gradient of a leaf is a sum of terms, and each term is linear in each of its arrays: `h` and `g`
of a tap, or a materialised gradient. An example's array is divided by 2**a. Its gradient is divided
by the product of these powers, which must be the same for all terms, because they add.
"""

import functools
import math
import operator
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bevel import precision
from bevel.clipping.accumulate.example_gradients import ExampleGradients
from bevel.clipping.norms.scaling import exponent, power_of_two
from bevel.clipping.norms.weighting import mask_examples
from bevel.clipping.uses.shared_terms import SharedTermGradients
from bevel.sharding.types import as_varying, varying_axes


# Sums of squares up to 2**LARGEST_SQUARE, with a largest entry of at least 2**SMALLEST_ENTRY, are
# in the range in which every norm is valid without scaling.
LARGEST_SQUARE, SMALLEST_ENTRY = 56, -24


class ScaledArrays(NamedTuple):
    arrays: list[jax.Array]
    exponents: list[jax.Array]  # (B,) for each leaf: its gradients were divided by 2 to these
    finite: list[jax.Array]  # (B,) for each leaf: whether all its arrays were finite


class FactoredArrays(NamedTuple):
    """The arrays of some leaves, each array once."""

    leaves: list[int]
    arrays: list[jax.Array]
    terms: list[list[list[int]]]  # for each leaf, the numbers of the arrays of each term
    flat: list[tuple[Any, list[Any]]]  # for each leaf, its structure, and arrays by number

    @classmethod
    def of(cls, gradients: ExampleGradients, leaves: Collection[int]) -> "FactoredArrays":
        """The arrays of `leaves`."""
        result, known = cls([], [], [], []), dict[Any, int]()
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
                        result.arrays.append(own)
                terms.append([flat[place] for place in term])
            result.leaves.append(leaf)
            result.terms.append(terms)
            result.flat.append((structure, flat))
        return result

    def values(self, arrays: Sequence[jax.Array]) -> dict[int, Any]:
        """The values of each leaf with other arrays."""
        return {
            leaf: jax.tree.unflatten(
                structure, [arrays[x] if isinstance(x, int) else x for x in flat]
            )
            for leaf, (structure, flat) in zip(self.leaves, self.flat, strict=True)
        }

    def scaled(self, arrays: Sequence[jax.Array], padding: Any, nan_safe: bool) -> ScaledArrays:
        """Divides arrays whose largest entries are very large or small, so that they are near 1.

        Where arrays are not finite, they become zero if `nan_safe`. Those of padding always do.
        """
        # One leaf after the other, with the same operations: the compiler generates code once for
        # all leaves of one shape.
        largest = [_largest(x) for x in arrays]
        tops = [_exponent_out_of_range(*pair) for pair in zip(arrays, largest, strict=True)]
        divisors, exponents, finite = list(tops), [], []
        for terms in self.terms:
            sums = [functools.reduce(operator.add, [tops[i] for i in term]) for term in terms]
            exponents.append(functools.reduce(jnp.maximum, sums))
            for term, total in zip(terms, sums, strict=True):
                if len(terms) > 1:
                    divisors[term[-1]] = tops[term[-1]] + (exponents[-1] - total)
            own = [jnp.isfinite(largest[i]) for term in terms for i in term]
            finite.append(functools.reduce(operator.and_, own))
        result = []
        for x, top, e in zip(arrays, largest, divisors, strict=True):
            keep = jnp.isfinite(top) if nan_safe else None
            if padding is not None:
                keep = ~padding if keep is None else keep & ~padding
            result.append(mask_examples(keep, _divided(x, e)))
        return ScaledArrays(result, exponents, finite)


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


def _largest(x: jax.Array) -> jax.Array:
    """The largest magnitude in each x[i]; NaN or inf if it is not finite."""
    top = jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)))
    return jax.lax.optimization_barrier(top.astype(precision.accumulation_dtype(x.dtype)))


def _exponent_out_of_range(x: jax.Array, largest: jax.Array) -> jax.Array:
    """The exponents (B,) of the largest entries, or 0 where squares of x[i] stay in range."""
    e = exponent(largest)
    high = (LARGEST_SQUARE - math.ceil(math.log2(math.prod(x.shape[1:])))) // 2
    return jnp.where((e >= SMALLEST_ENTRY) & (e < high), jnp.zeros_like(e), e)


def _divided(x: jax.Array, e: jax.Array) -> jax.Array:
    """`x` (B, ...) divided by 2**e, for e up to three times the largest exponent."""
    result = x.astype(precision.accumulation_dtype(x.dtype))
    limit = -jnp.finfo(result.dtype).minexp
    for _ in range(3):
        part = jnp.clip(e, -limit, limit)
        power = power_of_two(-part, result.dtype)
        result = result * jnp.expand_dims(power, tuple(range(1, x.ndim)))
        e = e - part
    return result.astype(x.dtype)
