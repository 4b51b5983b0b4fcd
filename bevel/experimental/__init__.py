"""Names that JAX Privacy counts as experimental, where it has them."""

from bevel.experimental import compilation_utils, monte_carlo

__all__ = ["compilation_utils", "monte_carlo"]
