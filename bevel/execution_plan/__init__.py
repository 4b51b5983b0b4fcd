"""Execution plans: sampler, clipping, noise and accounting, all made from one config."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
