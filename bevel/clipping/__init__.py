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
from bevel.clipping.explain import (
    Explanation,
    explain,
)

__all__ = [
    "Aux",
    "AuxiliaryOutput",
    "BoundedSensitivityCallable",
    "ClippedTreeAndNorm",
    "clip_and_round_to_grid",
    "clip_pytree",
    "clipped_fun",
    "clipped_grad",
    "Explanation",
    "explain",
]
