from bevel.noise_addition import keys as keys
from bevel.noise_addition.buffers import state_specs as state_specs
from bevel.noise_addition.discrete_noise import (
    discrete_gaussian_privatizer as discrete_gaussian_privatizer,
)
from bevel.noise_addition.discrete_noise import zcdp_rho as zcdp_rho
from bevel.noise_addition.gaussian import gaussian_privatizer as gaussian_privatizer
from bevel.noise_addition.gaussian import (
    matrix_factorization_privatizer as matrix_factorization_privatizer,
)
from bevel.noise_addition.noise_layout import SupportedStrategies as SupportedStrategies
from bevel.noise_addition.state import NoiseState as NoiseState
