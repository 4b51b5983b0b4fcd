"""Buffered linear Toeplitz matrices (BLT): a few decaying buffers for any number of steps."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
