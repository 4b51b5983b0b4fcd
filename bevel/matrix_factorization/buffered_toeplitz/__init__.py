"""Buffered linear Toeplitz strategies (BLT): a few decaying buffers for any number of steps."""

from bevel.matrix_factorization.buffered_toeplitz.blt import (
    BufferedToeplitz,
    check_float64_dtype,
    min_buf_decay_gap,
    require_buf_decay_less_eq_one,
    require_output_scale_gt_zero,
)
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import (
    iteration_error,
    limit_max_error,
    limit_max_loss,
    max_error,
    max_loss,
    mean_error,
    minsep_sensitivity_squared,
    robust_max_error_Gamma_j,
    robust_max_error_Gamma_jk,
    sensitivity_squared,
)
from bevel.matrix_factorization.buffered_toeplitz.loss import LossFn
from bevel.matrix_factorization.buffered_toeplitz.parameterization import (
    Parameterization,
    blt_pair_from_theta_pair,
)
from bevel.matrix_factorization.buffered_toeplitz.search import (
    get_init_blt,
    optimize,
    optimize_loss,
)
from bevel.matrix_factorization.buffered_toeplitz.streaming import StreamingMatrixBuilder
from bevel.matrix_factorization.buffered_toeplitz.sums import geometric_sum

__all__ = [
    "BufferedToeplitz",
    "check_float64_dtype",
    "min_buf_decay_gap",
    "require_buf_decay_less_eq_one",
    "require_output_scale_gt_zero",
    "iteration_error",
    "limit_max_error",
    "limit_max_loss",
    "max_error",
    "max_loss",
    "mean_error",
    "minsep_sensitivity_squared",
    "robust_max_error_Gamma_j",
    "robust_max_error_Gamma_jk",
    "sensitivity_squared",
    "LossFn",
    "Parameterization",
    "blt_pair_from_theta_pair",
    "get_init_blt",
    "optimize",
    "optimize_loss",
    "StreamingMatrixBuilder",
    "geometric_sum",
]
