"""The best banded Toeplitz strategy, and the best one whose inverse is banded.

Losses and gradients are JAX in float64, the L-BFGS steps are SciPy's; results are NumPy arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import checked_bands, checked_coefs
from bevel.matrix_factorization.optimization import jax_enable_x64, optimize
from bevel.matrix_factorization.toeplitz.error import Reduction, loss, per_query_error
from bevel.matrix_factorization.toeplitz.participation import (
    compute_banded_inverse_sensitivity_squared,
)
from bevel.matrix_factorization.toeplitz.series import inverse_coef
from bevel.matrix_factorization.toeplitz.square_root import (
    banded_inverse_square_root_noising_coefs,
    optimal_max_error_strategy_coefs,
)


@jax_enable_x64
def optimize_banded_toeplitz(
    n: int,
    bands: int,
    strategy_coef: jax.Array | None = None,
    max_optimizer_steps: int = 250,
    reduction_fn: Reduction = jnp.mean,
) -> jax.Array:
    """Coefficients of the banded Toeplitz C with the smallest error on n prefix sums.

    The column has norm 1: the sensitivity is 1 for one participation, and the root of their number
    for participations at least `bands` apart.

    Args:
      n: steps.
      bands: diagonals of C, from 1 (independent noise) to n. Noise keeps `bands - 1` buffers.
      strategy_coef: where to start, the square root of the workload cut to `bands` by default.
      max_optimizer_steps: it mostly ends by itself after 10 to 50.
      reduction_fn: of the squared errors of the queries: `jnp.mean` or `jnp.max`.
    """
    n = whole_number("n", n)
    bands = checked_bands(bands, n)
    given: Any = strategy_coef
    if given is None:
        given = optimal_max_error_strategy_coefs(bands)
    start = np.asarray(checked_coefs(given, "strategy_coef"), float)
    if len(start) != bands or start[0] == 0:
        raise FixArgumentsError(
            f"strategy_coef has {len(start)} numbers and begins with {start[0]}: write {bands}, "
            "one for each band, the first not zero."
        )
    best = optimize(
        lambda coef: loss(coef, n, reduction_fn),
        start / np.linalg.norm(start),
        max_optimizer_steps=max_optimizer_steps,
    )
    return best * np.sign(best[0]) / np.linalg.norm(best)


@jax_enable_x64
def optimize_banded_inverse_toeplitz(
    n: int,
    min_sep: int,
    num_bands: int,
    *,
    noising_coef: jax.Array | None = None,
    strategy_coef: jax.Array | None = None,
    workload_coef: jax.Array | None = None,
    max_participations: int | None = None,
    max_optimizer_steps: int = 1000,
    reduction_fn: Reduction = jnp.mean,
) -> Any:
    """Noising coefficients of the Toeplitz C with banded inverse and the smallest error.

    The first coefficient is 1. The sensitivity, which the loss includes, is that of
    `compute_banded_inverse_sensitivity_squared` for the same participations.

    Args:
      n: steps.
      min_sep, max_participations: participations of one example, as for the sensitivity.
      num_bands: diagonals of C^-1, from 1 to n. Noise keeps `num_bands - 1` buffers.
      noising_coef: where to start: BISR by default.
      strategy_coef: where to start, as coefficients of C; give at most one of the two.
      workload_coef: first column of the Toeplitz workload, prefix sums by default.
      max_optimizer_steps, reduction_fn: as in `optimize_banded_toeplitz`.
    """
    n = whole_number("n", n)
    num_bands = checked_bands(num_bands, n)
    if noising_coef is not None and strategy_coef is not None:
        raise FixArgumentsError("give noising_coef or strategy_coef to start from, not both.")
    if strategy_coef is not None:
        noising_coef = inverse_coef(strategy_coef, num_bands)
    if noising_coef is None:
        noising_coef = banded_inverse_square_root_noising_coefs(num_bands, workload_coef)
    start = np.asarray(checked_coefs(noising_coef, "noising_coef"), float)
    if len(start) != num_bands or start[0] == 0:
        raise FixArgumentsError(
            f"noising_coef has {len(start)} numbers and begins with {start[0]}: write {num_bands}, "
            "one for each band, the first not zero."
        )

    def error_times_sensitivity(rest: jax.Array) -> jax.Array:
        coef = jnp.concatenate([jnp.ones(1), rest])
        error = per_query_error(noising_coef=coef, n=n, workload_coef=workload_coef)
        return reduction_fn(error) * compute_banded_inverse_sensitivity_squared(
            n, coef, min_sep, max_participations
        )

    rest = optimize(
        error_times_sensitivity, start[1:] / start[0], max_optimizer_steps=max_optimizer_steps
    )
    return np.concatenate([[1.0], rest])
