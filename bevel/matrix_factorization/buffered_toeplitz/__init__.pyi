from bevel.matrix_factorization.buffered_toeplitz.blt import BufferedToeplitz as BufferedToeplitz
from bevel.matrix_factorization.buffered_toeplitz.blt import (
    check_float64_dtype as check_float64_dtype,
)
from bevel.matrix_factorization.buffered_toeplitz.blt import min_buf_decay_gap as min_buf_decay_gap
from bevel.matrix_factorization.buffered_toeplitz.blt import (
    require_buf_decay_less_eq_one as require_buf_decay_less_eq_one,
)
from bevel.matrix_factorization.buffered_toeplitz.blt import (
    require_output_scale_gt_zero as require_output_scale_gt_zero,
)
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import (
    iteration_error as iteration_error,
)
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import (
    limit_max_error as limit_max_error,
)
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import (
    limit_max_loss as limit_max_loss,
)
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import max_error as max_error
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import max_loss as max_loss
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import mean_error as mean_error
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import (
    minsep_sensitivity_squared as minsep_sensitivity_squared,
)
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import (
    robust_max_error_Gamma_j as robust_max_error_Gamma_j,
)
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import (
    robust_max_error_Gamma_jk as robust_max_error_Gamma_jk,
)
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import (
    sensitivity_squared as sensitivity_squared,
)
from bevel.matrix_factorization.buffered_toeplitz.loss import LossFn as LossFn
from bevel.matrix_factorization.buffered_toeplitz.parameterization import (
    Parameterization as Parameterization,
)
from bevel.matrix_factorization.buffered_toeplitz.parameterization import (
    blt_pair_from_theta_pair as blt_pair_from_theta_pair,
)
from bevel.matrix_factorization.buffered_toeplitz.search import get_init_blt as get_init_blt
from bevel.matrix_factorization.buffered_toeplitz.search import optimize as optimize
from bevel.matrix_factorization.buffered_toeplitz.search import optimize_loss as optimize_loss
from bevel.matrix_factorization.buffered_toeplitz.streaming import (
    StreamingMatrixBuilder as StreamingMatrixBuilder,
)
from bevel.matrix_factorization.buffered_toeplitz.sums import geometric_sum as geometric_sum
