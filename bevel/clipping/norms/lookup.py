"""Lookups of rows of a table by index: y[t] = w[i[t]].

The gradient is sum_t e[i[t]] (x) g[t] with unit vectors e, so the left vectors are stored as the
indices. Two of them are equal or orthogonal, and nothing has the size of the table until the sum
over the batch.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from bevel import precision
from bevel.clipping.norms.dense import in_order
from bevel.clipping.norms.outer_products import OuterProducts, Side
from bevel.clipping.norms.registry import (
    SEPARATE,
    SHARED,
    GradientSizes,
    Loops,
    NormRule,
    OperandSides,
    register,
)


def _whole_rows(eqn: JaxprEqn, picked: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether a lookup picks one index in the dimensions `picked`, and all of the others."""
    table: Any = eqn.invars[0].aval
    out: Any = eqn.outvars[0].aval
    floats = jnp.issubdtype(table.dtype, jnp.floating)
    fits = all(size == (1 if i in picked else table.shape[i]) for i, size in enumerate(sizes))
    indices: list[Any] = [v.aval for v in eqn.invars[1:]]
    # If the index dtype cannot hold the length of the table, clipping is left to JAX.
    wide = all(jnp.iinfo(x.dtype).max >= max(table.shape, default=0) for x in indices)
    return bool(floats and fits and wide and 0 not in (*table.shape, *out.shape))


def _accepts_gather(eqn: JaxprEqn, operand: int) -> bool:
    numbers = eqn.params["dimension_numbers"]
    picked = tuple(numbers.start_index_map)
    plain = (
        bool(picked)
        and not numbers.operand_batching_dims
        and sorted(picked) == list(numbers.collapsed_slice_dims)
    )
    return operand == 0 and plain and _whole_rows(eqn, picked, eqn.params["slice_sizes"])


def _gather_sizes(eqn: JaxprEqn, operand: int, loops: Loops) -> GradientSizes:
    del operand
    indices: Any = eqn.invars[1].aval
    return _table_sizes(
        eqn, tuple(eqn.params["dimension_numbers"].start_index_map), indices.shape[:-1], loops
    )


def _table_sizes(
    eqn: JaxprEqn, picked: Sequence[int], rows: Sequence[int], loops: Loops
) -> GradientSizes:
    table: Any = eqn.invars[0].aval
    entries = math.prod(table.shape[i] for i in picked)
    steps = {k: math.prod(n for kind, n in loops if kind == k) for k in (SEPARATE, SHARED)}
    others = math.prod(table.shape) // entries
    return GradientSizes(
        steps[SEPARATE], steps[SHARED] * math.prod(rows), entries, others, looked_up=True
    )


def _gather(eqn: JaxprEqn, operand: int, loops: Loops, h: Sequence[Any], g: Any) -> OuterProducts:
    del operand
    numbers = eqn.params["dimension_numbers"]
    (indices,) = h
    mode = eqn.params["mode"]
    offsets = tuple(numbers.offset_dims)
    rows = tuple(i for i in range(g.ndim - 1 - len(loops)) if i not in offsets)
    g = in_order(g, loops, (), rows, offsets)
    columns = [indices[..., i] for i in range(indices.shape[-1])]
    columns = [in_order(x, loops, (), range(x.ndim - 1 - len(loops)), ()) for x in columns]
    table: Any = eqn.invars[0].aval
    dims = tuple(numbers.start_index_map)
    pairs = zip(columns, dims, strict=True)
    inside = functools.reduce(
        operator.and_, [(x >= 0) & (x < table.shape[dim]) for x, dim in pairs]
    )
    if mode != jax.lax.GatherScatterMode.CLIP:
        # JAX gives reads outside of the table no gradient.
        inside = jnp.expand_dims(inside, tuple(range(inside.ndim, g.ndim)))
        g = jnp.where(inside, g, jnp.zeros_like(g))
    return _rows_at(eqn, dims, columns, g, loops)


def _rows_at(
    eqn: JaxprEqn, dims: Sequence[int], indices: Sequence[Any], g: Any, loops: Loops
) -> OuterProducts:
    """Rows at `indices` (B, separate..., rows...), one array per dimension in `dims`."""
    table: Any = eqn.invars[0].aval
    index: Any = 0
    for own, dim in sorted(zip(indices, dims, strict=True), key=lambda pair: pair[1]):
        inside = jnp.clip(own, 0, table.shape[dim] - 1).astype(np.int32)
        index = index * table.shape[dim] + inside
    loop_dims = [None for kind, _ in loops if kind == SEPARATE]
    picked = tuple(sorted(dims))
    others = tuple(i for i in range(len(table.shape)) if i not in dims)
    return OuterProducts(
        Side(index, tuple(table.shape[i] for i in picked), one_hot=True),
        Side(g, tuple(table.shape[i] for i in others)),
        separate=len(loop_dims),
        rows=index.ndim - 1 - len(loop_dims),
        dims=(*loop_dims, *picked, *others),
        multiplier=precision.matmul_precision(g.dtype),
    )


def _accepts_dynamic_slice(eqn: JaxprEqn, operand: int) -> bool:
    picked = _sliced(eqn)
    return operand == 0 and bool(picked) and _whole_rows(eqn, picked, eqn.params["slice_sizes"])


def _sliced(eqn: JaxprEqn) -> tuple[int, ...]:
    """The dimensions in which one index is picked."""
    table: Any = eqn.invars[0].aval
    slices = zip(eqn.params["slice_sizes"], table.shape, strict=True)
    return tuple(i for i, (size, full) in enumerate(slices) if size == 1 and full > 1)


def _dynamic_slice_sizes(eqn: JaxprEqn, operand: int, loops: Loops) -> GradientSizes:
    del operand
    return _table_sizes(eqn, _sliced(eqn), (), loops)


def _dynamic_slice(
    eqn: JaxprEqn, operand: int, loops: Loops, h: Sequence[Any], g: Any
) -> OuterProducts:
    del operand
    dims = _sliced(eqn)
    starts = [in_order(h[i], loops, (), (), ()) for i in dims]
    own = [i for i in range(len(eqn.params["slice_sizes"])) if i not in dims]
    first = 1 + len(loops)
    g = in_order(jnp.squeeze(g, tuple(first + i for i in dims)), loops, (), (), range(len(own)))
    return _rows_at(eqn, dims, starts, g, loops)


def _indices(eqn: JaxprEqn, operand: int) -> tuple[int, ...]:
    del operand
    return tuple(range(1, len(eqn.invars)))


def _table_sides(eqn: JaxprEqn, picked: Sequence[int]) -> OperandSides:
    table: Any = eqn.invars[0].aval
    return (), sorted(picked), [i for i in range(len(table.shape)) if i not in picked]


def _gather_sides(eqn: JaxprEqn, operand: int) -> OperandSides:
    del operand
    return _table_sides(eqn, eqn.params["dimension_numbers"].start_index_map)


def _dynamic_slice_sides(eqn: JaxprEqn, operand: int) -> OperandSides:
    del operand
    return _table_sides(eqn, _sliced(eqn))


register(
    "gather", NormRule("lookup", _accepts_gather, _indices, _gather_sizes, _gather, _gather_sides)
)
register(
    "dynamic_slice",
    NormRule(
        "lookup",
        _accepts_dynamic_slice,
        _indices,
        _dynamic_slice_sizes,
        _dynamic_slice,
        _dynamic_slice_sides,
    ),
)
