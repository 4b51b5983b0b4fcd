"""Proposes the numbers of a private run from its budget and the size of its data set alone."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
