"""Optimal banded Toeplitz matrices C, and optimal ones whose inverse is banded.

Losses are computed by JAX in float64 and minimised by SciPy's L-BFGS. Results are NumPy arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.errors import FixArgumentsError
from bevel.matrix_factorization.checks import checked_bands, checked_coefs, checked_length
from bevel.matrix_factorization.optimization import jax_enable_x64, optimize
from bevel.matrix_factorization.toeplitz import participation, square_root
from bevel.matrix_factorization.toeplitz.error import Reduction, loss, per_query_error
from bevel.matrix_factorization.toeplitz.series import inverse_coef


@jax_enable_x64
def optimize_banded_toeplitz(
    n: int,
    bands: int,
    strategy_coef: jax.Array | None = None,
    max_optimizer_steps: int = 250,
    reduction_fn: Reduction = jnp.mean,
) -> jax.Array:
    """Coefficients of the banded Toeplitz C with the smallest error on n prefix sums.

    The coefficients have norm 1. The sensitivity is 1 for one participation, and sqrt(k) for k
    participations that are at least `bands` apart.

    Args:
      n: number of steps.
      bands: diagonals of C, from 1 (independent noise) to n. Noise needs `bands - 1` buffers.
      strategy_coef: starting point, by default the square root of prefix sums, truncated.
      max_optimizer_steps: usually it converges in 10 to 50.
      reduction_fn: reduces the squared errors of the queries: `jnp.mean` or `jnp.max`.
    """
    n = checked_length(n)
    bands = checked_bands(bands, n)
    coef: Any = strategy_coef
    if strategy_coef is None:
        coef = square_root.optimal_max_error_strategy_coefs(bands)
    start = np.asarray(checked_coefs(coef, "strategy_coef"), float)
    if len(start) != bands or start[0] == 0:
        raise FixArgumentsError(
            f"strategy_coef has {len(start)} numbers and begins with {start[0]}: pass {bands}, one "
            "for each band, with the first not zero."
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
    """Coefficients of the banded Toeplitz C^-1 with the smallest error at equal privacy.

    The first coefficient is 1. The loss includes the sensitivity, which is that of
    `compute_banded_inverse_sensitivity_squared` for the same participations.

    Args:
      n: number of steps.
      min_sep, max_participations: participations of one example, as for the sensitivity.
      num_bands: diagonals of C^-1, from 1 to n. The noise state has `num_bands - 1` buffers.
      noising_coef: starting point, BISR by default.
      strategy_coef: starting point as coefficients of C; pass at most one of the two.
      workload_coef: first column of the Toeplitz workload, prefix sums by default.
      max_optimizer_steps, reduction_fn: as in `optimize_banded_toeplitz`.
    """
    n = checked_length(n)
    num_bands = checked_bands(num_bands, n)
    if noising_coef is not None and strategy_coef is not None:
        raise FixArgumentsError(
            "pass noising_coef or strategy_coef as the starting point, not both."
        )
    if strategy_coef is not None:
        noising_coef = inverse_coef(strategy_coef, num_bands)
    if noising_coef is None:
        noising_coef = square_root.banded_inverse_square_root_noising_coefs(
            num_bands, workload_coef
        )
    start = np.asarray(checked_coefs(noising_coef, "noising_coef"), float)
    if len(start) != num_bands or start[0] == 0:
        raise FixArgumentsError(
            f"noising_coef has {len(start)} numbers and begins with {start[0]}: pass {num_bands}, "
            "one for each band, with the first not zero."
        )

    def error_times_sensitivity(rest: jax.Array) -> jax.Array:
        coef = jnp.concatenate([jnp.ones(1), rest])
        error = per_query_error(noising_coef=coef, n=n, workload_coef=workload_coef)
        return reduction_fn(error) * participation.compute_banded_inverse_sensitivity_squared(
            n, coef, min_sep, max_participations
        )

    rest = optimize(
        error_times_sensitivity, start[1:] / start[0], max_optimizer_steps=max_optimizer_steps
    )
    return np.concatenate([[1.0], rest])
