"""Noise addition: independent, correlated or discrete noise, sharded like the gradient."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
