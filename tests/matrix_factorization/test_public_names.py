"""The public names of JAX Privacy exist in the same modules."""

import importlib

import pytest

import bevel

NAMES = {
    "banded": "ColumnNormalizedBanded minsep_sensitivity_squared optimize per_query_error",
    "buffered_toeplitz": (
        "BufferedToeplitz LossFn Parameterization StreamingMatrixBuilder blt_pair_from_theta_pair "
        "check_float64_dtype geometric_sum get_init_blt iteration_error limit_max_error "
        "limit_max_loss max_error max_loss min_buf_decay_gap optimize optimize_loss "
        "require_buf_decay_less_eq_one require_output_scale_gt_zero robust_max_error_Gamma_j "
        "robust_max_error_Gamma_jk sensitivity_squared"
    ),
    "dense": "get_orthogonal_mask optimize per_query_error pg_tol_termination_fn strategy_from_X",
    "optimization": "CallbackArgs jax_enable_x64 optimize",
    "sensitivity": (
        "banded_lower_triangular_mask banded_symmetric_mask fixed_epoch_sensitivity "
        "fixed_epoch_sensitivity_for_X get_min_sep_sensitivity_upper_bound "
        "get_min_sep_sensitivity_upper_bound_for_X get_sensitivity_banded "
        "get_sensitivity_banded_for_X max_participation_for_linear_fn "
        "minsep_true_max_participations single_participation_sensitivity"
    ),
    "streaming_matrix": (
        "StreamingMatrix diagonal identity momentum_sgd_matrix multiply_array "
        "multiply_streaming_matrices prefix_sum scale_rows_and_columns"
    ),
    "toeplitz": (
        "banded_inverse_square_root_noising_coefs compute_banded_inverse_sensitivity_squared "
        "inverse_as_streaming_matrix inverse_coef loss materialize_lower_triangular "
        "minsep_sensitivity_squared multiply optimal_max_error_noising_coefs "
        "optimal_max_error_strategy_coefs optimize_banded_inverse_toeplitz "
        "optimize_banded_toeplitz optimize_coefs_for_amplifications pad_coefs_to_n "
        "per_query_error sensitivity_squared solve_banded"
    ),
}


@pytest.mark.parametrize("module", NAMES)
def test_names(module):
    imported = importlib.import_module(f"bevel.matrix_factorization.{module}")
    assert getattr(bevel.matrix_factorization, module) is imported
    missing = [
        name for name in NAMES[module].split() if not callable(getattr(imported, name, None))
    ]
    assert not missing
