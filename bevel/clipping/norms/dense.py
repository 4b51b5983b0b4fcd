"""Matrix products, y = h . w for one example, with any contracting and batch dimensions.

With the dimensions of h and w named s (batch), d (contracted), t (free in h) and k (free in w):

    y[s,t,k] = sum_d h[s,t,d] w[s,d,k]      so      G[s,d,k] = sum_t h[s,t,d] g[s,t,k]

There is one sum of outer products for each s, where s runs over heads or experts. The steps of a
loop extend s if each step has its own slice of w, and extend t if all steps share w.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from bevel import precision
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


class _Dimensions:
    """The dimensions of `dot_general`, with the parameter as operand `weight`."""

    def __init__(self, eqn: JaxprEqn, weight: int):
        contracting, batch = eqn.params["dimension_numbers"]
        h_aval: Any = eqn.invars[1 - weight].aval
        w_aval: Any = eqn.invars[weight].aval
        self.h_shape, self.w_shape = h_aval.shape, w_aval.shape
        self.h_batch, self.w_batch = tuple(batch[1 - weight]), tuple(batch[weight])
        # Contracted dimensions in the weight's order.
        pairs = sorted(zip(contracting[weight], contracting[1 - weight], strict=True))
        self.w_contract = tuple(w for w, _ in pairs)
        self.h_contract = tuple(h for _, h in pairs)
        self.h_rows = self.free(h_aval.ndim, self.h_batch, self.h_contract)
        self.w_free = self.free(w_aval.ndim, self.w_batch, self.w_contract)
        # The output has the batch dimensions first, then the free dimensions of the left operand.
        first = len(self.w_batch)
        counts = [len(self.h_rows), len(self.w_free)]
        left = range(first, first + counts[weight != 1])
        right = range(left.stop, left.stop + counts[weight == 1])
        rows, free = (left, right) if weight == 1 else (right, left)
        self.y_batch, self.y_rows, self.y_free = range(first), rows, free

    @staticmethod
    def free(ndim: int, batch: Sequence[int], contract: Sequence[int]) -> tuple[int, ...]:
        return tuple(i for i in range(ndim) if i not in (*batch, *contract))


def _accepts(eqn: JaxprEqn, weight: int) -> bool:
    """Accepts floating-point products without empty dimensions."""
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    floats = all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in avals)
    return floats and all(0 not in aval.shape for aval in avals)


def _sizes(eqn: JaxprEqn, weight: int, loops: Loops) -> GradientSizes:
    d = _Dimensions(eqn, weight)

    def count(shape: Sequence[int], dims: Sequence[int], kind: str = "") -> int:
        lengths = [length for of, length in loops if of == kind]
        return int(np.prod([*(shape[i] for i in dims), *lengths]))

    return GradientSizes(
        count(d.w_shape, d.w_batch, SEPARATE),
        count(d.h_shape, d.h_rows, SHARED),
        count(d.w_shape, d.w_contract),
        count(d.w_shape, d.w_free),
    )


def _gradient(eqn: JaxprEqn, weight: int, loops: Loops, h: Sequence[Any], g: Any) -> OuterProducts:
    """The gradients of B examples, from h (B, loops..., own) and g (B, loops..., own)."""
    d = _Dimensions(eqn, weight)
    (other,) = h
    dtype = wider(other.dtype, g.dtype)
    multiplier = precision.matmul_precision(dtype, eqn.params["precision"])
    left = in_order(other, loops, d.h_batch, d.h_rows, d.h_contract)
    right = in_order(g, loops, d.y_batch, d.y_rows, d.y_free)
    loop_dims = [None for kind, _ in loops if kind == SEPARATE]
    return OuterProducts(
        Side(left.astype(dtype), tuple(d.w_shape[i] for i in d.w_contract)),
        Side(right.astype(dtype), tuple(d.w_shape[i] for i in d.w_free)),
        separate=len(loop_dims) + len(d.w_batch),
        rows=len(loops) - len(loop_dims) + len(d.h_rows),
        dims=(*loop_dims, *d.w_batch, *d.w_contract, *d.w_free),
        multiplier=multiplier,
    )


def wider(one: Any, other: Any) -> np.dtype:
    """A dtype that holds the values of both exactly."""
    return np.dtype(one) if one == other else precision.accumulation_dtype(one, other)


def in_order(
    x: Any,
    loops: Loops,
    separate: Sequence[int],
    rows: Sequence[int],
    entries: Sequence[int],
) -> Any:
    """`x` (B, loops..., own) as (B, separate..., rows..., entries...)."""
    first = 1 + len(loops)
    stacked = [i + 1 for i, (kind, _) in enumerate(loops) if kind == SEPARATE]
    shared = [i + 1 for i, (kind, _) in enumerate(loops) if kind == SHARED]
    own = [[first + i for i in dims] for dims in (separate, rows, entries)]
    return jnp.transpose(x, (0, *stacked, *own[0], *shared, *own[1], *own[2]))


def _others(eqn: JaxprEqn, weight: int) -> tuple[int, ...]:
    del eqn
    return (1 - weight,)


def _sides(eqn: JaxprEqn, weight: int) -> OperandSides:
    d = _Dimensions(eqn, weight)
    return d.w_batch, d.w_contract, d.w_free


register("dot_general", NormRule("dense", _accepts, _others, _sizes, _gradient, _sides))
