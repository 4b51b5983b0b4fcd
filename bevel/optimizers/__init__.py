"""Optimizers that account for clipping and noise, as optax transformations."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
