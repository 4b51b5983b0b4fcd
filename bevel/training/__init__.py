"""The training loop: batch selection, clipping, noise and accounting, joined in a `Trainer`."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
