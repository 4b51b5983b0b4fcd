"""Modules that JAX Privacy marks as experimental, under the same names."""

from bevel.experimental import compilation_utils, discrete_gaussian, monte_carlo

__all__ = ["compilation_utils", "discrete_gaussian", "monte_carlo"]
