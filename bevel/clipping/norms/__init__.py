"""Per-example norms: by a norm rule where there is one, otherwise from materialised gradients.

This package is internal: only `bevel.clipping` uses it. Importing a module of rules registers them.
"""

from bevel.clipping.norms import convolution as convolution
from bevel.clipping.norms import dense as dense
from bevel.clipping.norms import lookup as lookup
from bevel.clipping.norms import ragged as ragged
from bevel.clipping.norms.materialised import materialised_norm, quick_norm, unfinished_norm
from bevel.clipping.norms.registry import MeasuredNorm, Norm, NormRule, register, rule_for

__all__ = [
    "MeasuredNorm",
    "Norm",
    "NormRule",
    "materialised_norm",
    "quick_norm",
    "register",
    "rule_for",
    "unfinished_norm",
]
