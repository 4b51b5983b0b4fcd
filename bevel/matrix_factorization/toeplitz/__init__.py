"""Lower triangular Toeplitz strategies, given by their first column."""

from bevel.matrix_factorization.toeplitz.amplified import optimize_coefs_for_amplifications
from bevel.matrix_factorization.toeplitz.banded_optimum import (
    optimize_banded_inverse_toeplitz,
    optimize_banded_toeplitz,
)
from bevel.matrix_factorization.toeplitz.error import (
    loss,
    per_query_error,
)
from bevel.matrix_factorization.toeplitz.participation import (
    compute_banded_inverse_sensitivity_squared,
    minsep_sensitivity_squared,
    sensitivity_squared,
)
from bevel.matrix_factorization.toeplitz.series import (
    inverse_coef,
    materialize_lower_triangular,
    multiply,
    pad_coefs_to_n,
    solve_banded,
)
from bevel.matrix_factorization.toeplitz.square_root import (
    banded_inverse_square_root_noising_coefs,
    optimal_max_error_noising_coefs,
    optimal_max_error_strategy_coefs,
)
from bevel.matrix_factorization.toeplitz.streaming import (
    as_streaming_matrix,
    inverse_as_streaming_matrix,
)

__all__ = [
    "optimize_coefs_for_amplifications",
    "optimize_banded_inverse_toeplitz",
    "optimize_banded_toeplitz",
    "loss",
    "per_query_error",
    "compute_banded_inverse_sensitivity_squared",
    "minsep_sensitivity_squared",
    "sensitivity_squared",
    "inverse_coef",
    "materialize_lower_triangular",
    "multiply",
    "pad_coefs_to_n",
    "solve_banded",
    "banded_inverse_square_root_noising_coefs",
    "optimal_max_error_noising_coefs",
    "optimal_max_error_strategy_coefs",
    "as_streaming_matrix",
    "inverse_as_streaming_matrix",
]
