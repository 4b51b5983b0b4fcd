"""`bevel.matrix_factorization`: numbers of steps and coefficients, without optimisation."""

import functools

import numpy as np
from bad_input.domains import (
    ANYTHING,
    POSITIVE,
    Domain,
    array,
    either,
    integer,
    number,
    one_of,
    optional,
    sequence,
)
from bad_input.rows import row

from bevel import matrix_factorization as mf

COUNT = integer(1)
STEPS = either(integer(1, 10**7))
SHORT = either(integer(1, 2**14))
COEFS = either(sequence(number(), 1) | array("fiu"))
MATRIX = either(array("fiu", (2,)) | Domain("rows", lambda v: isinstance(v, list | tuple)))
COLUMN = (COEFS, np.array([1.0, 0.5, 0.25]))
N = (optional(STEPS), 4)
SEPARATION = {
    "min_sep": (either(COUNT), 2),
    "max_participations": (either(optional(integer(0))), 2),
}
BLT = mf.buffered_toeplitz.BufferedToeplitz.build([0.9, 0.5], [0.2, 0.1])
MANY = {
    "toeplitz.pad_coefs_to_n": {"coef": COLUMN, "n": N},
    "toeplitz.materialize_lower_triangular": {"coef": COLUMN, "n": (optional(SHORT), 4)},
    "toeplitz.multiply": {"lhs_coef": COLUMN, "rhs_coef": COLUMN, "n": N},
    "toeplitz.inverse_coef": {"coef": COLUMN, "n": N},
    "toeplitz.solve_banded": {"coef": COLUMN, "rhs": (ANYTHING, np.ones(4))},
    "toeplitz.sensitivity_squared": {"coef": COLUMN, "n": N},
    "toeplitz.minsep_sensitivity_squared": {"strategy_coef": COLUMN, "n": (STEPS, 4), **SEPARATION},
    "toeplitz.compute_banded_inverse_sensitivity_squared": {
        "noising_coef": COLUMN,
        "n": (STEPS, 4),
        "use_matrix_upper_bound": (ANYTHING, False),
        **SEPARATION,
    },
    "toeplitz.per_query_error": {
        "strategy_coef": COLUMN,
        "noising_coef": (ANYTHING, None),
        "n": N,
        "workload_coef": (optional(COEFS), None),
    },
    "toeplitz.optimal_max_error_strategy_coefs": {"n": (STEPS, 4)},
    "toeplitz.optimal_max_error_noising_coefs": {"n": (STEPS, 4)},
    "toeplitz.banded_inverse_square_root_noising_coefs": {
        "num_bands": (STEPS, 4),
        "workload_coef": (optional(COEFS), None),
    },
    "toeplitz.as_streaming_matrix": {"coef": COLUMN},
    "toeplitz.inverse_as_streaming_matrix": {"coef": COLUMN, "column_normalize_for_n": N},
    "sensitivity.single_participation_sensitivity": {"C": (MATRIX, np.eye(3))},
    "sensitivity.minsep_true_max_participations": {"n": (either(COUNT), 4), **SEPARATION},
    "sensitivity.max_participation_for_linear_fn": {"x": (ANYTHING, np.ones(4)), **SEPARATION},
    "sensitivity.banded_lower_triangular_mask": {"n": (SHORT, 4), "num_bands": (either(COUNT), 2)},
    "sensitivity.banded_symmetric_mask": {"n": (SHORT, 4), "num_bands": (either(COUNT), 2)},
    "sensitivity.get_min_sep_sensitivity_upper_bound": {"C": (MATRIX, np.eye(3)), **SEPARATION},
    "sensitivity.get_sensitivity_banded": {"C": (MATRIX, np.eye(3)), **SEPARATION},
    "sensitivity.fixed_epoch_sensitivity": {"C": (MATRIX, np.eye(4)), "epochs": (either(COUNT), 2)},
    "tree_aggregation.num_levels": {"n": (COUNT, 4)},
    "tree_aggregation.strategy_matrix": {"n": (SHORT, 4)},
    "tree_aggregation.per_query_error": {"n": (STEPS, 4)},
    "tree_aggregation.sensitivity_squared": {"n": (either(COUNT), 4), **SEPARATION},
    "dense.get_orthogonal_mask": {"n": (SHORT, 4), "epochs": (either(COUNT), 2)},
    "buffered_toeplitz.BufferedToeplitz.build": {
        "buf_decay": (COEFS, [0.9, 0.5]),
        "output_scale": (COEFS, [0.2, 0.1]),
        "dtype": (ANYTHING, np.float64),
    },
    "buffered_toeplitz.BufferedToeplitz.from_rational_approx_to_sqrt_x": {
        "num_buffers": (either(integer(0, 100)), 2),
        "max_buf_decay": (either(number(0, 1, "r")), 1.0),
        "max_pillutla_score": (either(optional(POSITIVE)), None),
        "buf_decay_scale": (either(POSITIVE), 1.6),
        "buf_decay_shift": (either(number()), -1),
    },
    "buffered_toeplitz.LossFn.build_min_sep": {
        "n": (either(COUNT), 4),
        "error": (one_of("max", "mean"), "max"),
        **SEPARATION,
    },
    "buffered_toeplitz.StreamingMatrixBuilder": {
        "buf_decay": (COEFS, np.array([0.9, 0.5])),
        "output_scale": (COEFS, np.array([0.2, 0.1])),
    },
    "banded.ColumnNormalizedBanded.from_banded_toeplitz": {"n": (STEPS, 4), "coefs": COLUMN},
    "banded.ColumnNormalizedBanded.default": {"n": (STEPS, 4), "bands": (either(COUNT), 2)},
}


def _found(path):
    value = mf
    for name in path.split("."):
        value = getattr(value, name)
    return value


ROWS = [row(name, _found(name), **arguments) for name, arguments in MANY.items()]
ROWS += [
    row(
        f"BufferedToeplitz.{method}",
        getattr(BLT, method),
        n=((STEPS, 4) if method == "toeplitz_coefs" else (SHORT, 4)),
    )
    for method in ("toeplitz_coefs", "materialize")
]
ROWS += [
    row(
        f"buffered_toeplitz.{name} (of a BLT)",
        functools.partial(getattr(mf.buffered_toeplitz, name), blt),
        n=(either(COUNT), 4),
    )
    for name, blt in [
        ("sensitivity_squared", BLT),
        ("max_error", BLT.inverse()),
        ("max_loss", BLT),
    ]
]
OPTIMISES = "optimises: its numbers of steps are checked by the functions that it calls"
EXEMPT = {
    "Candidate": "made by `choose_mechanism`",
    "Choice": "made by `choose_mechanism`",
    "choose_mechanism": OPTIMISES,
    "StreamingMatrix": "a pair of functions",
}
