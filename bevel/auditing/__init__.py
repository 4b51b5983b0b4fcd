"""Auditing: lower bounds on epsilon, and attack metrics, from the scores of canaries.

A canary is an example whose membership you decide by a coin flip. Train with the held-in canaries,
score all of them by any attack, and `CanaryScoreAuditor` says how much privacy the model has lost
at least. A bound above the epsilon that was promised proves a bug; a bound of 0 proves nothing.
"""

from bevel.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
