"""Products of rows with the matrix of their group, y[t] = h[t] . w[e[t]]: mixtures of experts.

Group sizes say which rows belong to which group: the first `sizes[0]` rows to group 0, the next
`sizes[1]` rows to group 1. With the unit vector u[t] of the group of row t, or zero if it has none,

    G[e,d,k] = sum_t u[t,e] h[t,d] g[t,k]      so      the left vectors are u[t] (x) h[t].

Two rows of different groups are orthogonal. Only h and the sizes are held. The left vectors, which
have G times as many entries, exist while a norm or a sum is computed.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from bevel import precision
from bevel.clipping.norms.dense import in_order, wider
from bevel.clipping.norms.outer_products import OuterProducts, Side
from bevel.clipping.norms.registry import SEPARATE, SHARED, GradientSizes, Loops, NormRule, register

NUMBERS = "ragged_dot_dimension_numbers"
ROWS, WEIGHTS, GROUP_SIZES = range(3)  # operands


def _weight_dims(eqn: JaxprEqn) -> tuple[int, int, int]:
    """The dimensions of the weights: groups, contracted, free."""
    (_, (contracted,)), _ = eqn.params[NUMBERS].dot_dimension_numbers
    (group,) = eqn.params[NUMBERS].rhs_group_dimensions
    (free,) = {0, 1, 2} - {group, contracted}
    return group, contracted, free


def _accepts(eqn: JaxprEqn, operand: int) -> bool:
    """Accepts `jax.lax.ragged_dot` with the parameter as weights, in any order of dimensions."""
    numbers = eqn.params[NUMBERS]
    (contracted, _), (batch, _) = numbers.dot_dimension_numbers
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    ranks = [aval.ndim for aval in avals]
    return (
        operand == WEIGHTS
        and eqn.params["group_offset"] is None
        and ranks == [2, 3, 1, 2]
        and tuple(numbers.lhs_ragged_dimensions) == (0,)
        and tuple(contracted) == (1,)
        and not batch
        and all(jnp.issubdtype(avals[i].dtype, jnp.floating) for i in (ROWS, WEIGHTS, -1))
        and all(0 not in aval.shape for aval in avals)
    )


def _sizes(eqn: JaxprEqn, operand: int, loops: Loops) -> GradientSizes:
    del operand
    rows: Any = eqn.invars[ROWS].aval
    weights: Any = eqn.invars[WEIGHTS].aval
    group, contracted, free = (weights.shape[i] for i in _weight_dims(eqn))
    separate, times = 1, rows.shape[0]
    for kind, length in loops:
        separate *= length if kind == SEPARATE else 1
        times *= length if kind == SHARED else 1
    return GradientSizes(separate, times, group * contracted, free)


def _gradient(eqn: JaxprEqn, operand: int, loops: Loops, h: Sequence[Any], g: Any) -> OuterProducts:
    """The gradients of B examples, from rows (B, loops..., M, D), sizes (B, loops..., G) and g."""
    del operand
    rows, sizes = h
    dtype = wider(rows.dtype, g.dtype)
    ends = jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype)[..., None, :]
    starts = ends - sizes[..., None, :]
    position = jax.lax.broadcasted_iota(
        sizes.dtype, (*rows.shape[:-1], sizes.shape[-1]), rows.ndim - 2
    )
    inside = ((starts <= position) & (position < ends))[..., None]  # (B, loops..., M, G, 1)
    spread = rows.astype(dtype)[..., None, :]
    left = jnp.where(inside, spread, jnp.zeros_like(spread))
    weights: Any = eqn.invars[WEIGHTS].aval
    group, contracted, free = _weight_dims(eqn)
    loop_dims = [None for kind, _ in loops if kind == SEPARATE]
    return OuterProducts(
        Side(
            in_order(left, loops, (), (0,), (1, 2)),
            (weights.shape[group], weights.shape[contracted]),
        ),
        Side(in_order(g, loops, (), (0,), (1,)).astype(dtype), (weights.shape[free],)),
        separate=len(loop_dims),
        rows=len(loops) - len(loop_dims) + 1,
        dims=(*loop_dims, group, contracted, free),
        multiplier=precision.matmul_precision(dtype, eqn.params["precision"]),
    )


def _others(eqn: JaxprEqn, operand: int) -> tuple[int, ...]:
    del eqn, operand
    return ROWS, GROUP_SIZES


def _sides(eqn: JaxprEqn, operand: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    del operand
    group, contracted, free = _weight_dims(eqn)
    return (), (group, contracted), (free,)


register("ragged_dot_general", NormRule("ragged", _accepts, _others, _sizes, _gradient, _sides))
