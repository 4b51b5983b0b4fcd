"""Privacy accounting on top of dp-accounting: events, epsilon, trade-off curves and calibration."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
