"""Algebra of lower triangular Toeplitz matrices: entry (i, j) is coef[i - j].

Products and inverses of such matrices are those of the power series with coefficients `coef`.
Concrete values are computed by NumPy and SciPy in float64, traced values by JAX.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import (
    checked_coefs,
    checked_finite,
    checked_length,
    checked_rows,
    shape_of,
)
from bevel.matrix_factorization.optimization import namespace

# Up to this size dense matrices are fast. Larger systems are solved in blocks of this many rows, so
# that arithmetic outweighs the overhead of the loop.
BLOCK = 128


def pad_coefs_to_n(coef: jax.Array, n: int | None = None) -> Any:
    """Pads `coef` with zeros, or truncates it, to n coefficients. None leaves it unchanged."""
    coef = _as_floats(coef, "coef")
    n = coef.shape[0] if n is None else checked_length(n)
    return namespace(coef).pad(coef[:n], (0, max(0, n - coef.shape[0])))


def materialize_lower_triangular(coef: jax.Array, n: int | None = None) -> Any:
    """The dense n x n matrix whose first column is `coef`, padded or truncated."""
    coef = _as_floats(coef, "coef")
    n = coef.shape[0] if n is None else checked_rows(n)
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    last = coef.shape[0] - 1
    return namespace(coef).where((lag >= 0) & (lag <= last), coef[np.clip(lag, 0, last)], 0.0)


def multiply(lhs_coef: jax.Array, rhs_coef: jax.Array, n: int | None = None) -> Any:
    """Coefficients of the product of two n x n Toeplitz matrices.

    n is by default the larger number of coefficients. O(n log n). Long products use the FFT, whose
    error is small relative to the largest coefficient, not relative to each.
    """
    lhs, rhs = _as_floats(lhs_coef, "lhs_coef"), _as_floats(rhs_coef, "rhs_coef")
    n = max(lhs.shape[0], rhs.shape[0]) if n is None else checked_length(n)
    if namespace(lhs, rhs) is jnp:
        return _convolve(lhs[:n], pad_coefs_to_n(rhs, n)[:, None])[:, 0]
    import scipy.signal

    return pad_coefs_to_n(scipy.signal.convolve(lhs[:n], rhs[:n]), n)


def inverse_coef(coef: jax.Array, n: int | None = None) -> Any:
    """The first n coefficients of the inverse: the series 1 / (coef[0] + coef[1] x + ...)."""
    coef = _as_floats(coef, "coef")
    n = coef.shape[0] if n is None else checked_length(n)
    return solve_banded(coef, np.eye(1, n)[0])


def solve_banded(coef: jax.Array, rhs: jax.Array) -> Any:
    """Solves T x = rhs for rhs of shape (n,) or (n, ...), where T is the n x n matrix of `coef`.

    Uses forward substitution, O(n * bands), with its stability. It is differentiable in both
    arguments, at the cost of one more solve.
    """
    coef, xp = _as_floats(coef, "coef"), namespace(coef, rhs)
    if not all(shape_of(rhs, "rhs")[:1] or (0,)):
        raise FixArgumentsError(
            "rhs is a scalar or empty: pass one row for each row of the matrix."
        )
    rhs = xp.asarray(checked_finite(rhs, "rhs"), float)
    coef = coef[: rhs.shape[0]]
    if namespace(coef) is np and coef[0] == 0:
        raise FixArgumentsError("coef[0] is 0: pass a nonzero one, else there is no inverse.")
    if xp is np:
        import scipy.signal

        return scipy.signal.lfilter([1.0], coef, rhs, axis=0)
    coef, columns = jnp.asarray(coef), rhs.reshape(rhs.shape[0], -1)
    if rhs.shape[0] <= BLOCK:
        matrix = materialize_lower_triangular(coef, rhs.shape[0])
        return solve_triangular(matrix, columns, lower=True).reshape(rhs.shape)
    x = jax.lax.custom_linear_solve(
        functools.partial(_convolve, coef),
        columns,
        solve=lambda _, r: _forward_substitution(coef, r),
        transpose_solve=lambda _, r: _forward_substitution(coef, r[::-1])[::-1],
    )
    return x.reshape(rhs.shape)


def _as_floats(coef: Any, name: str) -> Any:
    """Checks coefficients and casts them to float64, or JAX's default float if traced."""
    return namespace(coef).asarray(checked_coefs(coef, name), float)


@jax.jit
def _convolve(coef: jax.Array, x: jax.Array) -> jax.Array:
    """T x for x of shape (n, m), where T has the first column `coef` (at most n numbers)."""
    n = x.shape[0]
    if n <= BLOCK:
        matrix = materialize_lower_triangular(coef, n)
        return jnp.dot(matrix, x, precision=jax.lax.Precision.HIGHEST)
    length = 1 << (n + coef.shape[0] - 1).bit_length()
    spectrum = jnp.fft.rfft(coef, length)[:, None] * jnp.fft.rfft(x, length, axis=0)
    return jnp.fft.irfft(spectrum, length, axis=0)[:n]


@jax.jit
def _forward_substitution(coef: jax.Array, rhs: jax.Array) -> jax.Array:
    """Solves T x = rhs for rhs of shape (n, m), one block of rows at a time."""
    (n, columns), past = rhs.shape, coef.shape[0] - 1
    diagonal_block = materialize_lower_triangular(coef, BLOCK)
    # Entry (i, s) multiplies the row `past - s` before the block, i + past - s before row i.
    lag = np.add.outer(np.arange(BLOCK), past - np.arange(past))
    below = jnp.where(lag <= past, coef[np.minimum(lag, past)], 0.0)

    def solve(before: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
        known = jnp.dot(below, before, precision=jax.lax.Precision.HIGHEST)
        x = solve_triangular(diagonal_block, r - known, lower=True)
        return jnp.concatenate([before, x])[x.shape[0] :], x

    rhs = jnp.pad(rhs, ((0, -n % BLOCK), (0, 0))).reshape(-1, BLOCK, columns)
    start = jnp.zeros((past, columns), rhs.dtype)
    return jax.lax.scan(solve, start, rhs)[1].reshape(-1, columns)[:n]
