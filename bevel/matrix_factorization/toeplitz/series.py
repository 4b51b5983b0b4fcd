"""Lower triangular Toeplitz matrices as power series: entry (i, j) is coef[i - j].

Products and inverses of such matrices are products and inverses of series. JAX throughout; called
with plain numbers the functions compute in float64 and return NumPy arrays.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import checked_coefs, checked_count
from bevel.matrix_factorization.optimization import jax_enable_x64

# Rows that are solved for at a time. A step of the loop costs about as much as its arithmetic.
BLOCK = 128
# Up to this size a product by its definition is fast, and exact to the last digit.
DIRECT = 256


@jax_enable_x64
def pad_coefs_to_n(coef: jax.Array, n: int | None = None) -> jax.Array:
    """The first n coefficients: zeros are added, or the rest is cut. None changes nothing."""
    coef = jnp.asarray(checked_coefs(coef, "coef"), float)
    n = coef.shape[0] if n is None else checked_count(n, "n")
    return jnp.pad(coef[:n], (0, max(0, n - coef.shape[0])))


@jax_enable_x64
def materialize_lower_triangular(coef: jax.Array, n: int | None = None) -> jax.Array:
    """The dense n x n matrix whose first column is `coef`, padded or cut."""
    coef = jnp.asarray(checked_coefs(coef, "coef"), float)
    return lower_triangular(coef, coef.shape[0] if n is None else checked_count(n, "n"))


@jax_enable_x64
def multiply(lhs_coef: jax.Array, rhs_coef: jax.Array, n: int | None = None) -> jax.Array:
    """Coefficients of the product of two Toeplitz matrices of size n, by default of the longer one.

    O(n log n). Above a few hundred coefficients it is by FFT: then the error is small beside the
    largest coefficients, not beside each.
    """
    lhs = jnp.asarray(checked_coefs(lhs_coef, "lhs_coef"), float)
    rhs = jnp.asarray(checked_coefs(rhs_coef, "rhs_coef"), float)
    n = max(lhs.shape[0], rhs.shape[0]) if n is None else checked_count(n, "n")
    return convolve(lhs[:n], pad_coefs_to_n(rhs, n)[:, None])[:, 0]


@jax_enable_x64
def inverse_coef(coef: jax.Array, n: int | None = None) -> jax.Array:
    """The first n coefficients of the inverse matrix: of 1 / (coef[0] + coef[1] x + ...)."""
    coef = jnp.asarray(checked_coefs(coef, "coef"), float)
    n = coef.shape[0] if n is None else checked_count(n, "n")
    return solve_banded(coef[:n], jnp.zeros(n).at[0].set(1))


@jax_enable_x64
def solve_banded(coef: jax.Array, rhs: jax.Array) -> jax.Array:
    """Solves T x = rhs for rhs of shape (n,) or (n, ...), T the n x n matrix of `coef`.

    Forward substitution in blocks: O(n * bands), stable for every T for which substitution is.
    Differentiable in both arguments, at the cost of one more solve.
    """
    coef = jnp.asarray(checked_coefs(coef, "coef"), float)
    rhs = jnp.asarray(rhs, float)
    if rhs.ndim == 0:
        raise FixArgumentsError("rhs is a number: write one row for each row of the matrix.")
    if not isinstance(coef, jax.core.Tracer) and coef[0] == 0:
        raise FixArgumentsError("coef[0] is 0: the matrix has no inverse.")
    coef = coef[: rhs.shape[0]]
    columns = rhs.reshape(rhs.shape[0], -1)

    x = jax.lax.custom_linear_solve(
        functools.partial(convolve, coef),
        columns,
        solve=lambda _, r: forward_substitution(coef, r),
        transpose_solve=lambda _, r: forward_substitution(coef, r[::-1])[::-1],
    )
    return x.reshape(rhs.shape)


def lower_triangular(coef: jax.Array, n: int) -> jax.Array:
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    last = coef.shape[0] - 1
    return jnp.where((lag >= 0) & (lag <= last), coef[np.clip(lag, 0, last)], 0.0)


@jax.jit
def convolve(coef: jax.Array, x: jax.Array) -> jax.Array:
    """T x for the columns of x (n, m), where T has the first column `coef` (at most n of them)."""
    n = x.shape[0]
    if n <= DIRECT:
        matrix = lower_triangular(coef, n)
        return jnp.dot(matrix, x, precision=jax.lax.Precision.HIGHEST)
    length = 1 << (n + coef.shape[0] - 1).bit_length()
    spectrum = jnp.fft.rfft(coef, length)[:, None] * jnp.fft.rfft(x, length, axis=0)
    return jnp.fft.irfft(spectrum, length, axis=0)[:n]


@jax.jit
def forward_substitution(coef: jax.Array, rhs: jax.Array) -> jax.Array:
    """Solves T x = rhs for the columns of rhs (n, m), a block of rows at a time."""
    (n, columns), past = rhs.shape, coef.shape[0] - 1
    block = min(BLOCK, n)
    diagonal_block = lower_triangular(coef, block)
    # Entry (i, s) multiplies the row that is `past - s` before the block, i + past - s before i.
    lag = np.add.outer(np.arange(block), past - np.arange(past))
    below = jnp.where(lag <= past, coef[np.minimum(lag, past)], 0.0)

    def solve(before: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
        known = jnp.dot(below, before, precision=jax.lax.Precision.HIGHEST)
        x = solve_triangular(diagonal_block, r - known, lower=True)
        return jnp.concatenate([before, x])[x.shape[0] :], x

    blocks = -(-n // block)
    rhs = jnp.pad(rhs, ((0, blocks * block - n), (0, 0))).reshape(blocks, block, columns)
    start = jnp.zeros((past, columns), rhs.dtype)
    return jax.lax.scan(solve, start, rhs)[1].reshape(-1, columns)[:n]
