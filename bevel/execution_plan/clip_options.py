"""How a plan bounds one record: options that change the guarantee or the released numbers."""

import dataclasses
import math
from typing import Any

from bevel.errors import FixArgumentsError
from bevel.execution_plan.adaptive_clipping import AdaptiveClipping


@dataclasses.dataclass(frozen=True)
class ClipOptions:
    """Clip norm, what the sum is divided by, and whether the clip norm adapts."""

    l2_clip_norm: float
    rescale_to_unit_norm: bool
    normalize_by: float
    adaptive: AdaptiveClipping | None = None

    def __post_init__(self) -> None:
        positive("normalize_by", self.normalize_by, "as the expected batch size is")
        if self.l2_clip_norm != math.inf:
            positive("l2_clip_norm", self.l2_clip_norm, "a length")

    @property
    def l2_norm_bound(self) -> float:
        """Of one record's gradient in the sum (without the count of adaptive clipping)."""
        return (1.0 if self.rescale_to_unit_norm else self.l2_clip_norm) / self.normalize_by


def positive(name: str, value: Any, why: str) -> float:
    """`value`, if it is a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise FixArgumentsError(f"{name}={value!r}: give a positive number, {why}.")
    return float(value)
