"""Samplers select the examples of each step, in NumPy, and state their proven privacy event."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
