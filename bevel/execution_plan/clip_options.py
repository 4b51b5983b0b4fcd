"""How a plan bounds one record: options that change the guarantee or the released numbers."""

import dataclasses
import math

from bevel.checks import positive_number
from bevel.execution_plan.adaptive_clipping import AdaptiveClipping


@dataclasses.dataclass(frozen=True)
class ClipOptions:
    """Clip norm, what the sum is divided by, and whether the clip norm adapts."""

    l2_clip_norm: float
    rescale_to_unit_norm: bool
    normalize_by: float
    adaptive: AdaptiveClipping | None = None

    def __post_init__(self) -> None:
        positive_number("normalize_by", self.normalize_by, "as the expected batch size is")
        if self.l2_clip_norm != math.inf:
            positive_number("l2_clip_norm", self.l2_clip_norm, "a length")

    @property
    def l2_norm_bound(self) -> float:
        """Of one record's gradient in the sum (without the count of adaptive clipping)."""
        return (1.0 if self.rescale_to_unit_norm else self.l2_clip_norm) / self.normalize_by
