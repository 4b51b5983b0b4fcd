"""Norms of many parameters at once: the last steps, on few numbers per example, are taken together.

After the sums over a parameter's values, a norm and its bound take dozens of operations on B
numbers. A compiler would generate code for each parameter; stacked, it generates it once.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bevel.clipping.norms.registry import MeasuredNorm
from bevel.sharding.types import varying_axes


class UnfinishedNorm(NamedTuple):
    """Sums over the values of B examples, and the function that makes norms of them."""

    finish: Callable[..., MeasuredNorm]  # finish(*sums) or finish(*sums, static)
    sums: tuple[Any, ...]  # trees of arrays (B, ...) and of Python floats
    static: Hashable = None

    def finished(self) -> MeasuredNorm:
        return _finished(self.finish, self.static, self.sums)


class _StackedNorms(NamedTuple):
    """The norms (N, B) of the unfinished norms with these N numbers."""

    numbers: tuple[int, ...]
    measured: MeasuredNorm


def finish_together(norms: Sequence[UnfinishedNorm]) -> list[_StackedNorms]:
    """Finishes norms, all of one kind and shape together."""
    kinds = dict[Any, list[int]]()
    for number, norm in enumerate(norms):
        flat, structure = jax.tree.flatten(norm.sums)
        types = tuple(None if isinstance(x, float) else (x.shape, x.dtype) for x in flat)
        key = norm.finish, norm.static, structure, types, _axes(flat)
        kinds.setdefault(key, []).append(number)
    result = []
    for numbers in kinds.values():
        first = norms[numbers[0]]
        dtype = next(x.dtype for x in jax.tree.leaves(first.sums) if not isinstance(x, float))

        def stack(*own: Any, dtype: Any = dtype) -> Any:
            if isinstance(own[0], float):
                return np.array(own, dtype)
            return jnp.stack(own)

        sums = jax.tree.map(stack, *(norms[i].sums for i in numbers))
        # Behind a barrier: else the compiler computes the last steps once for each of their uses.
        sums = jax.tree.map(
            lambda x: x if isinstance(x, np.ndarray) else jax.lax.optimization_barrier(x), sums
        )
        measured = jax.vmap(lambda sums, own=first: _finished(own.finish, own.static, sums))(sums)
        result.append(_StackedNorms(tuple(numbers), measured))
    return result


def _finished(finish: Callable[..., MeasuredNorm], static: Hashable, sums: Any) -> MeasuredNorm:
    return finish(*sums) if static is None else finish(*sums, static)


def _axes(flat: Sequence[Any]) -> frozenset[str]:
    arrays = [x for x in flat if not isinstance(x, float)]
    return frozenset[str]().union(*(varying_axes(x) for x in arrays))
