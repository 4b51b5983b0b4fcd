"""Privacy accounting: events, epsilon, calibration, and the ledger, a record of what was spent."""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
