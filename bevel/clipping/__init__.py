"""Per-example gradient, clip, sum."""

from bevel.clipping.bounded import (
    Aux,
    AuxiliaryOutput,
    BoundedSensitivityCallable,
)
from bevel.clipping.clip_pytree import (
    ClippedTreeAndNorm,
    clip_and_round_to_grid,
    clip_pytree,
)
from bevel.clipping.clipped_grad import (
    clipped_fun,
    clipped_grad,
)
from bevel.clipping.explain import CompiledCost, Explanation, ParameterRow, explain
from bevel.clipping.options import SpeedOptions

__all__ = [
    "clipped_grad",
    "clipped_fun",
    "SpeedOptions",
    "BoundedSensitivityCallable",
    "Aux",
    "AuxiliaryOutput",
    "clip_pytree",
    "ClippedTreeAndNorm",
    "clip_and_round_to_grid",
    "explain",
    "Explanation",
    "ParameterRow",
    "CompiledCost",
]
