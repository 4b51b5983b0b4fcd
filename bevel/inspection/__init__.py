"""Inspect programs and arrays on a mesh: where arrays are, what a step sends, how it scales."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
