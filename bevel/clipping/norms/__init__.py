"""Per-example norms: by a norm rule where there is one, otherwise from materialised gradients."""

from bevel.clipping.norms import convolution as convolution
from bevel.clipping.norms import dense as dense
from bevel.clipping.norms import lookup as lookup
from bevel.clipping.norms import ragged as ragged
from bevel.clipping.norms.materialised import materialised_norm as materialised_norm
from bevel.clipping.norms.materialised import quick_norm as quick_norm
from bevel.clipping.norms.registry import MeasuredNorm as MeasuredNorm
from bevel.clipping.norms.registry import Norm as Norm
from bevel.clipping.norms.registry import NormRule as NormRule
from bevel.clipping.norms.registry import register as register
from bevel.clipping.norms.registry import rule_for as rule_for
