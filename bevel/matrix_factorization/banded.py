"""Banded strategy matrices whose columns have norm 1: BandMF without the Toeplitz constraint.

The functions are JAX. With concrete arguments they compute in float64 and return NumPy arrays.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import optimization, ring, sensitivity, streaming_matrix
from bevel.matrix_factorization.checks import (
    checked_bands,
    checked_coefs,
    checked_finite,
    checked_length,
)
from bevel.matrix_factorization.optimization import jax_enable_x64
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix
from bevel.matrix_factorization.toeplitz.square_root import optimal_max_error_strategy_coefs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ColumnNormalizedBanded:
    """A banded lower triangular C with columns of norm 1.

    Attributes:
      params: shape (n, bands). Row j holds column j of C from the diagonal down, before it is
        divided by its norm. Entries that would lie below the last row of C are ignored.
    """

    params: Any

    @property
    def n(self) -> int:
        """The number of steps, which is the size of C."""
        return self.params.shape[0]

    @property
    def bands(self) -> int:
        """The number of diagonals of C."""
        return self.params.shape[1]

    @classmethod
    def from_banded_toeplitz(cls, n: int, coefs: Any) -> "ColumnNormalizedBanded":
        """Starts from the Toeplitz matrix with first column `coefs`."""
        n = checked_length(n)
        checked_bands(np.shape(checked_coefs(coefs, "coefs"))[0], n)
        return _checked_strategy(cls(np.tile(np.asarray(coefs, float), (n, 1))))

    @classmethod
    def default(cls, n: int, bands: int) -> "ColumnNormalizedBanded":
        """The square root of the prefix-sum matrix, truncated to `bands` diagonals."""
        bands = checked_bands(bands, checked_length(n))
        return cls.from_banded_toeplitz(n, optimal_max_error_strategy_coefs(bands))

    @jax_enable_x64
    def columns(self) -> jax.Array:
        """The columns of C in the layout of `params`, with norm 1."""
        params = jnp.asarray(_checked_strategy(self).params, float)
        inside = np.add.outer(np.arange(self.n), np.arange(self.bands)) < self.n
        params = jnp.where(inside, params, 0.0)
        return params / jnp.sqrt(jnp.sum(params * params, axis=1, keepdims=True))

    @jax_enable_x64
    def materialize(self) -> jax.Array:
        """C as an n x n array."""
        columns = self.columns()
        row = np.add.outer(np.arange(self.n), np.arange(self.bands))
        column = np.broadcast_to(np.arange(self.n)[:, None], row.shape)
        return jnp.zeros((self.n, self.n)).at[row, column].add(columns, mode="drop")

    def inverse_as_streaming_matrix(self) -> StreamingMatrix[Any]:
        """C^-1 as a streaming matrix, for correlated noise.

        Its state is the last `bands - 1` outputs. Steps from n on give NaN.
        """
        columns, lag = self.columns(), np.arange(self.bands, dtype=np.int32)

        def row(step: jax.Array, dtype: Any) -> jax.Array:
            # C[t, t - k] is entry k of column t - k. Before step 0 the ring holds zeros.
            column = jnp.maximum(step - lag, 0)
            values = jnp.asarray(columns, dtype)
            return values.at[column, lag].get(mode="fill", fill_value=jnp.nan)

        return ring.banded_inverse(row, self.bands - 1)


def minsep_sensitivity_squared(
    strategy: ColumnNormalizedBanded,
    min_sep: int,
    max_participations: int | None = None,
    n: int | None = None,
    skip_checks: bool = False,
) -> int:
    """Squared sensitivity if the steps of an example are at least `min_sep` apart.

    It equals the number of participations: columns have norm 1, and columns at least `bands` apart
    do not overlap, so their squared norms add.

    Args:
      min_sep: at least the number of bands, unless `skip_checks` is True.
      n: number of steps, by default that of the strategy.
    """
    if not skip_checks and strategy.bands > whole_number("min_sep", min_sep):
        raise FixArgumentsError(
            f"min_sep={min_sep} is smaller than bands={strategy.bands}: columns that one example "
            "joins overlap. Use sensitivity.get_min_sep_sensitivity_upper_bound of materialize()."
        )
    steps = strategy.n if n is None else n
    return sensitivity.minsep_true_max_participations(steps, min_sep, max_participations)


@jax_enable_x64
def per_query_error(
    C: ColumnNormalizedBanded, A: StreamingMatrix[Any] | None = None, scan_fn: Any = jax.lax.scan
) -> jax.Array:
    """Squared error of each query for noise of variance 1: squared row norms of A C^-1.

    A is prefix sums by default. `scan_fn` takes the arguments of `jax.lax.scan`; replace it, for
    instance, to save memory in differentiation. Cost: O(n^2 bands) time, O(n bands) memory.
    """
    workload = streaming_matrix.prefix_sum() if A is None else A
    return (workload @ C.inverse_as_streaming_matrix()).row_norms_squared(C.n, scan_fn)


@jax_enable_x64
def optimize(
    n: int,
    *,
    bands: int,
    C: ColumnNormalizedBanded | None = None,
    A: StreamingMatrix[Any] | None = None,
    max_optimizer_steps: int = 100,
    reduction_fn: Callable[[Any], Any] = jnp.mean,
    scan_fn: Any = jax.lax.scan,
    callback: optimization.CallbackFnType = lambda _: None,
) -> ColumnNormalizedBanded:
    """Optimises a banded C with columns of norm 1, by L-BFGS on its n x bands entries.

    Differentiation stores the state of all steps, n^2 bands numbers, unless `scan_fn` avoids it.
    For large n, `toeplitz.optimize_banded_toeplitz` is much cheaper and nearly as good.

    Args:
      n: number of steps.
      bands: diagonals of C, from 1 to n.
      C: starting point, `ColumnNormalizedBanded.default` by default.
      A: workload, prefix sums by default.
      reduction_fn: reduces the squared errors of the queries: `jnp.mean` or `jnp.max`.
    """
    bands = checked_bands(bands, checked_length(n))
    C = ColumnNormalizedBanded.default(n, bands) if C is None else C
    if (C.n, C.bands) != (n, bands):
        raise FixArgumentsError(
            f"C has n={C.n} and bands={C.bands}: start from one with n={n} and bands={bands}."
        )
    return optimization.optimize(
        lambda strategy: reduction_fn(per_query_error(strategy, A, scan_fn)),
        C,
        max_optimizer_steps=max_optimizer_steps,
        callback=callback,
    )


def _checked_strategy(strategy: ColumnNormalizedBanded) -> ColumnNormalizedBanded:
    """Raises unless params have shape (n, bands), are finite and have no zero on the diagonal."""
    params = strategy.params
    if np.ndim(params) != 2 or not 1 <= params.shape[1] <= params.shape[0]:
        raise FixArgumentsError(
            f"params has shape {np.shape(params)}: pass one row per step and one column per band, "
            "with at most as many bands as steps."
        )
    checked_finite(params, "params")
    if not isinstance(params, jax.core.Tracer) and np.any(np.asarray(params)[:, 0] == 0):
        raise FixArgumentsError(
            "params[:, 0] has a zero, so C has no inverse: pass nonzero numbers."
        )
    return strategy
