"""Clipping options of a plan, which change the guarantee or the released numbers."""

import dataclasses
import math

from bevel.checks import flag, positive_number
from bevel.execution_plan.adaptive_clipping import AdaptiveClipping


@dataclasses.dataclass(frozen=True)
class ClipOptions:
    """How a plan clips: the clip norm, the divisor of the sum, and adaptive clipping."""

    l2_clip_norm: float
    rescale_to_unit_norm: bool
    normalize_by: float
    adaptive: AdaptiveClipping | None = None

    def __post_init__(self) -> None:
        flag("rescale_to_unit_norm", self.rescale_to_unit_norm)
        positive_number("normalize_by", self.normalize_by, "usually the expected batch size")
        if self.l2_clip_norm != math.inf:
            positive_number("l2_clip_norm", self.l2_clip_norm, "the largest norm of a gradient")

    @property
    def l2_norm_bound(self) -> float:
        """The bound of one record's gradient in the sum, without the count of adaptive clipping."""
        return (1.0 if self.rescale_to_unit_norm else self.l2_clip_norm) / self.normalize_by
