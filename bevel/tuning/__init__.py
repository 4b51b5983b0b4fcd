"""Tuning whose privacy cost is charged: private searches, and grids of which all trials count."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
