"""Ships a trained model with a privacy statement that anyone can check against the ledger.

Verifying a statement needs neither the run folder nor the packages that train or store models.
"""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
