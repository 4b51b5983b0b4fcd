"""Noise: independent, correlated or discrete, sharded like the gradient, from keys of choice."""

from bevel.noise_addition import keys
from bevel.noise_addition.buffers import state_specs
from bevel.noise_addition.discrete_noise import (
    discrete_gaussian_privatizer,
    zcdp_rho,
)
from bevel.noise_addition.gaussian import (
    gaussian_privatizer,
    matrix_factorization_privatizer,
)
from bevel.noise_addition.noise_layout import SupportedStrategies
from bevel.noise_addition.state import NoiseState

__all__ = [
    "keys",
    "state_specs",
    "discrete_gaussian_privatizer",
    "zcdp_rho",
    "gaussian_privatizer",
    "matrix_factorization_privatizer",
    "SupportedStrategies",
    "NoiseState",
]
