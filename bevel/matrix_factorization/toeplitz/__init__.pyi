from bevel.matrix_factorization.toeplitz.amplified import (
    optimize_coefs_for_amplifications as optimize_coefs_for_amplifications,
)
from bevel.matrix_factorization.toeplitz.banded_optimum import (
    optimize_banded_inverse_toeplitz as optimize_banded_inverse_toeplitz,
)
from bevel.matrix_factorization.toeplitz.banded_optimum import (
    optimize_banded_toeplitz as optimize_banded_toeplitz,
)
from bevel.matrix_factorization.toeplitz.error import loss as loss
from bevel.matrix_factorization.toeplitz.error import per_query_error as per_query_error
from bevel.matrix_factorization.toeplitz.participation import (
    compute_banded_inverse_sensitivity_squared as compute_banded_inverse_sensitivity_squared,
)
from bevel.matrix_factorization.toeplitz.participation import (
    minsep_sensitivity_squared as minsep_sensitivity_squared,
)
from bevel.matrix_factorization.toeplitz.participation import (
    sensitivity_squared as sensitivity_squared,
)
from bevel.matrix_factorization.toeplitz.series import inverse_coef as inverse_coef
from bevel.matrix_factorization.toeplitz.series import (
    materialize_lower_triangular as materialize_lower_triangular,
)
from bevel.matrix_factorization.toeplitz.series import multiply as multiply
from bevel.matrix_factorization.toeplitz.series import pad_coefs_to_n as pad_coefs_to_n
from bevel.matrix_factorization.toeplitz.series import solve_banded as solve_banded
from bevel.matrix_factorization.toeplitz.square_root import (
    banded_inverse_square_root_noising_coefs as banded_inverse_square_root_noising_coefs,
)
from bevel.matrix_factorization.toeplitz.square_root import (
    optimal_max_error_noising_coefs as optimal_max_error_noising_coefs,
)
from bevel.matrix_factorization.toeplitz.square_root import (
    optimal_max_error_strategy_coefs as optimal_max_error_strategy_coefs,
)
from bevel.matrix_factorization.toeplitz.streaming import as_streaming_matrix as as_streaming_matrix
from bevel.matrix_factorization.toeplitz.streaming import (
    inverse_as_streaming_matrix as inverse_as_streaming_matrix,
)
