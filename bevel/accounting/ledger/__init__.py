"""Records what was spent on a data set, on disk before anything is released.

Writing a ledger needs neither jax nor dp-accounting. Computing what was spent, and enforcing a
budget, imports dp-accounting on first use.
"""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
