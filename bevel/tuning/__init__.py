"""Tuning that is paid for: searches whose result is private, and grids that are charged in full."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
