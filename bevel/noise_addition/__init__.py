"""Noise: independent, correlated or discrete, sharded like the gradient, from keys of choice."""

from bevel.noise_addition import keys as keys
from bevel.noise_addition.buffers import state_specs as state_specs
from bevel.noise_addition.discrete import (
    discrete_gaussian_privatizer as discrete_gaussian_privatizer,
)
from bevel.noise_addition.discrete import zcdp_rho as zcdp_rho
from bevel.noise_addition.gaussian import gaussian_privatizer as gaussian_privatizer
from bevel.noise_addition.gaussian import (
    matrix_factorization_privatizer as matrix_factorization_privatizer,
)
from bevel.noise_addition.state import NoiseState as NoiseState
from bevel.noise_addition.strategies import SupportedStrategies as SupportedStrategies
