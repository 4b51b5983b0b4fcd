"""Per-example gradient, clip, sum."""

from bevel.clipping.bounded import Aux as Aux
from bevel.clipping.bounded import AuxiliaryOutput as AuxiliaryOutput
from bevel.clipping.bounded import BoundedSensitivityCallable as BoundedSensitivityCallable
from bevel.clipping.clipped_grad import clipped_fun as clipped_fun
from bevel.clipping.clipped_grad import clipped_grad as clipped_grad
from bevel.clipping.explain import Explanation as Explanation
from bevel.clipping.explain import explain as explain
from bevel.clipping.tree import ClippedTreeAndNorm as ClippedTreeAndNorm
from bevel.clipping.tree import clip_and_round_to_grid as clip_and_round_to_grid
from bevel.clipping.tree import clip_pytree as clip_pytree
