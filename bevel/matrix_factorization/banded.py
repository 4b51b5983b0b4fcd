"""Banded strategies whose columns differ but all have norm 1: BandMF without the Toeplitz form.

JAX; called with plain numbers the functions compute in float64 and return NumPy arrays.
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
from bevel.matrix_factorization.checks import checked_bands, checked_coefs, checked_finite
from bevel.matrix_factorization.optimization import jax_enable_x64
from bevel.matrix_factorization.streaming_matrix import StreamingMatrix
from bevel.matrix_factorization.toeplitz.square_root import optimal_max_error_strategy_coefs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ColumnNormalizedBanded:
    """A banded lower triangular C with columns of norm 1.

    Attributes:
      params: shape (n, bands). Row j holds column j of C from the diagonal down, before it is
        divided by its norm. What would lie below the last row of C is left out.
    """

    params: Any

    @property
    def n(self) -> int:
        """Size of C: steps."""
        return self.params.shape[0]

    @property
    def bands(self) -> int:
        """Diagonals of C."""
        return self.params.shape[1]

    @classmethod
    def from_banded_toeplitz(cls, n: int, coefs: Any) -> "ColumnNormalizedBanded":
        """All columns alike, as in the Toeplitz matrix of `coefs`."""
        n = whole_number("n", n)
        checked_bands(np.shape(checked_coefs(coefs, "coefs"))[0], n)
        return _checked_strategy(cls(np.tile(np.asarray(coefs, float), (n, 1))))

    @classmethod
    def default(cls, n: int, bands: int) -> "ColumnNormalizedBanded":
        """The square root of prefix sums, cut to `bands`."""
        bands = checked_bands(bands, whole_number("n", n))
        return cls.from_banded_toeplitz(n, optimal_max_error_strategy_coefs(bands))

    @jax_enable_x64
    def columns(self) -> jax.Array:
        """Columns of C in the layout of `params`, with norm 1."""
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
        # Rows past the last one are dropped.
        return jnp.zeros((self.n, self.n)).at[row, column].add(columns, mode="drop")

    def inverse_as_streaming_matrix(self) -> StreamingMatrix:
        """C^-1, one step at a time: noise of the mechanism.

        Its state is the last `bands - 1` values that went out. Steps from n on give NaN.
        """
        columns, lag = self.columns(), np.arange(self.bands, dtype=np.int32)

        def row(step: jax.Array, dtype: Any) -> jax.Array:
            # C[t, t - k] is entry k of column t - k. Before step 0 the ring is zero anyway.
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
    """Squared sensitivity if an example's steps are at least `min_sep` apart: how many there are.

    Columns have norm 1, and those at least `bands` apart do not overlap, so squares add.

    Args:
      min_sep: at least as large as the number of bands, unless skip_checks.
      n: steps, those of the strategy by default.
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
    C: ColumnNormalizedBanded, A: StreamingMatrix | None = None, scan_fn: Any = jax.lax.scan
) -> jax.Array:
    """Squared error of each query for noise of variance 1: row norms of A C^-1, squared.

    O(n^2 bands) operations, O(n bands) memory. A is prefix sums by default; `scan_fn` takes the
    arguments of `jax.lax.scan`, for instance to save memory when it is differentiated.
    """
    workload = streaming_matrix.prefix_sum() if A is None else A
    return (workload @ C.inverse_as_streaming_matrix()).row_norms_squared(C.n, scan_fn)


@jax_enable_x64
def optimize(
    n: int,
    *,
    bands: int,
    C: ColumnNormalizedBanded | None = None,
    A: StreamingMatrix | None = None,
    max_optimizer_steps: int = 100,
    reduction_fn: Callable[[Any], Any] = jnp.mean,
    scan_fn: Any = jax.lax.scan,
    callback: optimization.CallbackFnType = lambda _: None,
) -> ColumnNormalizedBanded:
    """The best banded C with columns of norm 1, by L-BFGS on its n x bands entries.

    Differentiation keeps the state of all steps: n^2 bands numbers, unless `scan_fn` does
    otherwise. For large n, `toeplitz.optimize_banded_toeplitz` is much cheaper and nearly as good.

    Args:
      n: steps.
      bands: diagonals of C, from 1 to n.
      C: where to start, `ColumnNormalizedBanded.default` otherwise.
      A: workload, prefix sums by default.
      reduction_fn: of the squared errors of the queries: `jnp.mean` or `jnp.max`.
    """
    bands = checked_bands(bands, whole_number("n", n))
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
    """Refuses params that are not finite, have a zero on the diagonal, or no (n, bands) shape."""
    params = strategy.params
    if np.ndim(params) != 2 or not 1 <= params.shape[1] <= params.shape[0]:
        raise FixArgumentsError(
            f"params has shape {np.shape(params)}: write one row a step and one column a band, at "
            "most as many bands as steps."
        )
    checked_finite(params, "params")
    if not isinstance(params, jax.core.Tracer) and np.any(np.asarray(params)[:, 0] == 0):
        raise FixArgumentsError("params[:, 0] has a zero: C would have no inverse.")
    return strategy
