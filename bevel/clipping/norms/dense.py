"""Matrix products: y = h @ w for one example.

With T rows per example, h (T, D) and the cotangent g (T, K), the gradient is sum_t h_t (x) g_t.

    one row:     |h (x) g|          = |h| |g|
    Gram:        |sum_t h_t (x) g_t|^2 = sum_{t,s} (h_t . h_s) (g_t . g_s)

Cost for one example: T^2 (D + K) multiplications and T^2 numbers, against T D K and D K for the
gradient itself, so the Gram form is taken where T (D + K) < D K.

Rounding. With A = sum_t |h_t| |g_t|, the computed square is off by at most gamma A^2, where gamma
counts the roundings in a row, and rounding `coefficient * g` moves the contribution by at most
u A. Where the rows cancel, A is much larger than the norm: the bound returned includes both terms,
and is never below A / MAX_CANCELLATION.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from bevel import precision
from bevel.clipping.bounded import MAX_CANCELLATION
from bevel.clipping.norms.kept import roundings, staged_sum
from bevel.clipping.norms.registry import Norm, Rule, register
from bevel.clipping.norms.scaling import power_of_two, root, scale_back, scale_to_one

# Of the square: the Gram form is not taken where its rounding may pass half a percent of a norm
# whose rows are at random angles.
WORST_SLACK = 0.01


class Sizes:
    """The dimensions of `dot_general`, seen from the example's side."""

    def __init__(self, eqn: JaxprEqn, weight: int):
        contracting, batch = eqn.params["dimension_numbers"]
        h_aval: Any = eqn.invars[1 - weight].aval
        w_aval: Any = eqn.invars[weight].aval
        self.batched = bool(batch[0])
        self.h_contract = tuple(contracting[1 - weight])
        self.w_contract = tuple(contracting[weight])
        self.h_rows = tuple(i for i in range(h_aval.ndim) if i not in self.h_contract)
        self.w_free = tuple(i for i in range(w_aval.ndim) if i not in self.w_contract)
        # The output has the free dimensions of the left operand first.
        rows, free = len(self.h_rows), len(self.w_free)
        if weight == 1:
            self.y_rows, self.y_free = tuple(range(rows)), tuple(range(rows, rows + free))
        else:
            self.y_free, self.y_rows = tuple(range(free)), tuple(range(free, free + rows))
        self.rows = int(np.prod([h_aval.shape[i] for i in self.h_rows]))
        self.inner = int(np.prod([h_aval.shape[i] for i in self.h_contract]))
        self.outer = int(np.prod([w_aval.shape[i] for i in self.w_free]))
        row_shape = tuple(h_aval.shape[i] for i in self.h_rows)
        self.roundings = self.inner + self.outer + roundings(row_shape * 2) + 8


def accepts(eqn: JaxprEqn, weight: int) -> bool:
    """One row per example, or few enough rows that the Gram form is cheaper and sharp."""
    sizes = Sizes(eqn, weight)
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    floats = all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in avals)
    if sizes.batched or not floats or 0 in (sizes.rows, sizes.inner, sizes.outer):
        return False
    if sizes.rows == 1:
        return True
    cheaper = sizes.rows * (sizes.inner + sizes.outer) < sizes.inner * sizes.outer
    dtype = precision.accumulation_dtype(avals[-1].dtype)
    sharp = precision.rounding_growth(sizes.roundings, dtype) * sizes.rows < WORST_SLACK
    return cheaper and sharp


def norm(eqn: JaxprEqn, weight: int, h: jax.Array, g: jax.Array) -> Norm:
    """Norms of the B gradients of the weight, from h (B, ...) and g (B, ...)."""
    sizes = Sizes(eqn, weight)
    h, g, exponent = scale_rows(sizes, h, g)
    dtype = h.dtype
    if sizes.rows == 1:
        (h_square, h_terms), (g_square, g_terms) = staged_sum(h * h), staged_sum(g * g)
        estimate = root(h_square) * root(g_square)
        upper = estimate * (1 + precision.rounding_growth(h_terms + g_terms + 8, dtype))
    else:
        gamma = precision.rounding_growth(sizes.roundings, dtype)
        u = precision.unit_roundoff(dtype)
        # A: each row's product of lengths, summed.
        lengths = root(sum_over(h * h, sizes.h_contract) * sum_over(g * g, sizes.y_free))
        absolute = jnp.sum(lengths, axis=tuple(range(1, lengths.ndim))) * (1 + gamma)
        gram = inner_products(h, sizes.h_contract) * inner_products(g, sizes.y_free)
        square = jnp.maximum(staged_sum(gram)[0], 0)
        upper = root(square + gamma * absolute * absolute) + 4 * u * absolute
        upper = jnp.maximum(upper, absolute / MAX_CANCELLATION) * (1 + 8 * u)
        estimate = root(square)
    return Norm(scale_back(estimate, exponent), scale_back(upper, exponent))


def scale_rows(sizes: Sizes, h: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """h and g with products of rows near 1 or below, and the exponent (B,) that was taken out.

    Row by row: with one scale for all of h and one for all of g, a row whose product is the largest
    may be tiny in both, and its square vanish.
    """
    dtype = precision.accumulation_dtype(h.dtype, g.dtype)
    h, h_exponent = scale_to_one(h.astype(dtype), [i + 1 for i in sizes.h_contract])
    g, g_exponent = scale_to_one(g.astype(dtype), [i + 1 for i in sizes.y_free])
    rows = h_exponent + g_exponent
    axes = tuple(range(1, rows.ndim))
    live = (jnp.max(jnp.abs(h), axis=[i + 1 for i in sizes.h_contract]) > 0) & (
        jnp.max(jnp.abs(g), axis=[i + 1 for i in sizes.y_free]) > 0
    )
    least = 2 * jnp.finfo(dtype).minexp
    largest = jnp.max(jnp.where(live, rows, least), axis=axes, keepdims=True, initial=least)
    # A row further below the largest than a float reaches is overstated, which is safe.
    shift = jnp.maximum(jnp.minimum(rows - largest, 0), jnp.finfo(dtype).minexp)
    h = h * jnp.expand_dims(power_of_two(shift, dtype), [i + 1 for i in sizes.h_contract])
    return h, g, largest.reshape(h.shape[0])


def weighted_sum(eqn: JaxprEqn, weight: int, h: jax.Array, g: jax.Array) -> jax.Array:
    """The gradient of the weight for cotangents `g` that carry their coefficient, summed over B."""
    sizes = Sizes(eqn, weight)
    dtype = precision.accumulation_dtype(h.dtype, g.dtype)
    rows = (0, *(i + 1 for i in sizes.h_rows)), (0, *(i + 1 for i in sizes.y_rows))
    result = jax.lax.dot_general(
        h.astype(dtype),
        g.astype(dtype),
        (rows, ((), ())),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=dtype,
    )
    # The product has the contracted dimensions in h's order, then the weight's free ones.
    by_h = np.argsort(sizes.h_contract)
    order = [sizes.w_contract[i] for i in by_h] + list(sizes.w_free)
    return jnp.transpose(result, tuple(np.argsort(order)))


def sum_over(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Sum over axes that are counted without the example axis."""
    return jnp.sum(x, axis=tuple(i + 1 for i in axes))


def inner_products(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """All inner products of the rows of each example: (B, rows..., rows...)."""
    contract = tuple(i + 1 for i in axes)
    return jax.lax.dot_general(
        x, x, ((contract, contract), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST
    )


def rows(eqn: JaxprEqn, weight: int) -> int:
    return Sizes(eqn, weight).rows


register("dot_general", Rule("dense", accepts, rows, norm, weighted_sum))
