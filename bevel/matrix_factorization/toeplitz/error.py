"""Errors of Toeplitz matrices C on prefix sums or another Toeplitz workload.

Concrete values are computed by NumPy in float64, traced values by JAX.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import checked_coefs, checked_length
from bevel.matrix_factorization.optimization import jax_enable_x64, namespace
from bevel.matrix_factorization.toeplitz.participation import sensitivity_squared
from bevel.matrix_factorization.toeplitz.series import multiply, pad_coefs_to_n, solve_banded

Reduction = Callable[[Any], Any]


def per_query_error(
    *,
    strategy_coef: jax.Array | None = None,
    noising_coef: jax.Array | None = None,
    n: int | None = None,
    workload_coef: jax.Array | None = None,
) -> Any:
    """Squared error of each of n queries for noise of variance 1: squared row norms of A C^-1.

    Args:
      strategy_coef: first column of C. Pass either this or `noising_coef`.
      noising_coef: first column of C^-1.
      n: number of queries, by default the number of coefficients.
      workload_coef: first column of A, prefix sums by default.
    """
    if (strategy_coef is None) == (noising_coef is None):
        raise FixArgumentsError("pass either strategy_coef (of C) or noising_coef (of C^-1).")
    coef: Any = strategy_coef if noising_coef is None else noising_coef
    name = "strategy_coef" if noising_coef is None else "noising_coef"
    checked_coefs(coef, name)
    n = np.shape(coef)[0] if n is None else checked_length(n)
    queries: Any = np.ones(n) if workload_coef is None else workload_coef
    workload = pad_coefs_to_n(queries, n)
    if noising_coef is None:
        decoder = solve_banded(coef, workload)
    else:
        decoder = multiply(coef, workload, n)
    return namespace(decoder).cumsum(decoder * decoder)


@jax_enable_x64
def loss(
    strategy_coef: jax.Array, n: int | None = None, reduction_fn: Reduction = jnp.mean
) -> jax.Array:
    """Squared error at equal privacy: the reduced error times the squared sensitivity.

    This is for one participation. For k participations that are at least as many steps apart as C
    has bands, the loss is k times as large, so the best C is the same.
    """
    error = reduction_fn(per_query_error(strategy_coef=strategy_coef, n=n))
    return error * sensitivity_squared(strategy_coef, n)
