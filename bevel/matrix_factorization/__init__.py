"""Factorizations A = B C of a workload, for correlated noise C^-1 z with a smaller error."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
