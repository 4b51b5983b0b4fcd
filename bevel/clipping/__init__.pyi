# ruff: noqa: I001 (in the order of the documentation)
from bevel.clipping.clipped_grad import clipped_grad as clipped_grad
from bevel.clipping.clipped_grad import clipped_fun as clipped_fun
from bevel.clipping.options import SpeedOptions as SpeedOptions
from bevel.clipping.bounded import BoundedSensitivityCallable as BoundedSensitivityCallable
from bevel.clipping.bounded import Aux as Aux
from bevel.clipping.bounded import AuxiliaryOutput as AuxiliaryOutput
from bevel.clipping.clip_pytree import clip_pytree as clip_pytree
from bevel.clipping.clip_pytree import ClippedTreeAndNorm as ClippedTreeAndNorm
from bevel.clipping.clip_pytree import clip_and_round_to_grid as clip_and_round_to_grid
from bevel.clipping.explain import explain as explain
from bevel.clipping.explain import Explanation as Explanation
from bevel.clipping.explain import ParameterRow as ParameterRow
from bevel.clipping.explain import CompiledCost as CompiledCost
