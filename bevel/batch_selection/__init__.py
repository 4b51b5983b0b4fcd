"""Samplers choose the examples of each step, and state the privacy event proven for them. NumPy."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
