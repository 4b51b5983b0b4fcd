"""Clipped sums of per-example gradients: `clipped_grad`, `clipped_fun`, `clip_pytree`."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
