"""Optimal dense strategy matrices C, for n up to a few thousand steps.

Losses are computed by JAX in float64 and minimised by SciPy's L-BFGS. Results are NumPy arrays.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import checks, optimization, sensitivity
from bevel.matrix_factorization.optimization import jax_enable_x64


@jax_enable_x64
def per_query_error(
    *,
    strategy_matrix: jax.Array | None = None,
    noising_matrix: jax.Array | None = None,
    workload_matrix: jax.Array | None = None,
    skip_checks: bool = False,
) -> jax.Array:
    """Squared error of each query for noise of variance 1: squared row norms of A C^-1.

    Args:
      strategy_matrix: C, lower triangular. Pass either this or `noising_matrix`.
      noising_matrix: C^-1, lower triangular.
      workload_matrix: A, one row per query; prefix sums by default.
      skip_checks: True if the matrix is known to be lower triangular and finite.
    """
    if (strategy_matrix is None) == (noising_matrix is None):
        raise FixArgumentsError("pass either strategy_matrix (C) or noising_matrix (C^-1).")
    argument = strategy_matrix if noising_matrix is None else noising_matrix
    if not skip_checks:
        name = "strategy_matrix" if noising_matrix is None else "noising_matrix"
        checks.checked_lower_triangular(argument, name)
        if not isinstance(argument, jax.core.Tracer) and np.any(np.diag(argument) == 0):
            raise FixArgumentsError(f"{name} has a zero on its diagonal: it must be invertible.")
    matrix = jnp.asarray(argument, float)
    workload = _checked_workload(workload_matrix, matrix.shape[0])
    if noising_matrix is None:
        decoder = solve_triangular(matrix, workload.T, trans=1, lower=True).T
    else:
        decoder = jnp.dot(workload, matrix, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(decoder * decoder, axis=1)


def get_orthogonal_mask(n: int, epochs: int = 1) -> np.ndarray:
    """1.0 where X = C'C may be nonzero if the columns that one example joins are orthogonal.

    Every epoch has the same order, so the steps of an example are multiples of n / epochs apart.
    The squared norms of its columns then add, whatever its contributions are.
    """
    period = sensitivity.epoch_length(checks.checked_rows(n), epochs)
    step = np.arange(n)
    distance = np.subtract.outer(step, step)
    return np.where((distance % period == 0) & (distance != 0), 0.0, 1.0)


@jax_enable_x64
def strategy_from_X(X: jax.Array) -> jax.Array:
    """The lower triangular C with a positive diagonal and C'C = X, for positive definite X."""
    X = jnp.asarray(checks.checked_square(X, "X"), float)
    # With rows and columns reversed, C is the upper triangular Cholesky factor.
    C = jnp.linalg.cholesky(X[::-1, ::-1]).T[::-1, ::-1]
    if not isinstance(C, jax.core.Tracer) and not np.all(np.isfinite(C)):
        raise FixArgumentsError("X is not positive definite, so there is no C with C'C = X.")
    return C


def pg_tol_termination_fn(step_info: optimization.CallbackArgs) -> bool:
    """Whether the gradient with respect to the free entries of X is small relative to the loss."""
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(step_info.grad))
    return largest <= 1e-7 * abs(float(step_info.loss))


@jax_enable_x64
def optimize(
    n: int,
    *,
    epochs: int = 1,
    bands: int | None = None,
    equal_norm: bool = False,
    A: jax.Array | None = None,
    max_optimizer_steps: int = 10000,
    reduction_fn: Callable[[Any], Any] = jnp.mean,
    callback: optimization.CallbackFnType = pg_tol_termination_fn,
) -> jax.Array:
    """Minimises the error over C with sensitivity 1, if every epoch has the same order.

    For other participation patterns, compute the sensitivity with `sensitivity`. With `equal_norm`
    and at most n / epochs bands it is 1 for all steps that are at least n / epochs apart.
    The optimisation is over X = C'C, in which the mean error is convex. Each step takes O(n^3).

    Args:
      n: number of steps, a multiple of epochs.
      epochs: participations of each example. Columns that one example joins are orthogonal.
      bands: number of diagonals of C that may be nonzero; all by default.
      equal_norm: whether all columns have the same norm. Otherwise only the squared norms of the
        columns that one example joins sum to 1.
      A: workload with n columns, prefix sums by default.
      max_optimizer_steps, callback: as in `optimization.optimize`. The default callback stops when
        the gradient is small.
      reduction_fn: reduces the squared errors of the queries: `jnp.mean` or `jnp.max`.
    """
    period = sensitivity.epoch_length(checks.checked_rows(n), epochs)
    mask = get_orthogonal_mask(n, epochs)
    if bands is not None:
        mask = mask * sensitivity.banded_symmetric_mask(n, checks.checked_bands(bands, n))
    workload = _checked_workload(A, n)

    def gram_of(free: jax.Array) -> jax.Array:
        """Maps any matrix near the identity to a feasible X."""
        X = mask * (free + free.T) / 2
        squares = jnp.diagonal(X).reshape(epochs, period)
        if equal_norm:
            total = epochs * squares
        else:
            total = jnp.broadcast_to(jnp.sum(squares, axis=0), squares.shape)
        scale = jax.lax.rsqrt(total.reshape(-1))
        return scale[:, None] * X * scale[None, :]

    def loss(free: jax.Array) -> jax.Array:
        factor = jnp.linalg.cholesky(gram_of(free))  # NaN if X is not positive definite
        half = solve_triangular(factor, workload.T, lower=True)
        return reduction_fn(jnp.sum(half * half, axis=0))

    free = optimization.optimize(
        loss, np.eye(n), max_optimizer_steps=max_optimizer_steps, callback=callback
    )
    C = strategy_from_X(gram_of(jnp.asarray(free)))
    # Remove rounding errors from entries that are zero by construction.
    return C * np.tril(mask if bands is not None else np.ones((n, n)))


def _checked_workload(workload: Any, n: int) -> jax.Array:
    if workload is None:
        return jnp.tril(jnp.ones((n, n)))
    if np.ndim(workload) != 2 or np.shape(workload)[1] != n:
        raise FixArgumentsError(
            f"the workload has shape {np.shape(workload)}: pass one row per query and {n} columns."
        )
    return jnp.asarray(checks.checked_finite(workload, "workload"), float)
