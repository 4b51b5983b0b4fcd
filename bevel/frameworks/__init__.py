"""Adapters for models of Flax NNX, Flax Linen and Equinox, which are optional dependencies."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
