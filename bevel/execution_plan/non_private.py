"""Training without clipping and noise, as a baseline for private training."""

import dataclasses
import math

from bevel.batch_selection import FixedBatchSampling
from bevel.checks import positive_number
from bevel.execution_plan.clip_options import ClipOptions
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.performance import PerformanceFlags, checked_flags
from bevel.execution_plan.plan import DPExecutionPlan
from bevel.execution_plan.plan_secrets import PlanSecrets
from bevel.execution_plan.privacy_unit import Unit


@dataclasses.dataclass(frozen=True)
class NonPrivateConfig:
    """Mean gradients of batches of fixed size. Nothing is protected: epsilon is infinite.

    Attributes:
      iterations: the number of steps.
      batch_size: the number of examples in a batch.
      normalize_by: the divisor of the sum; the batch size by default.
    """

    iterations: int
    batch_size: int
    normalize_by: float | None = None

    def __post_init__(self) -> None:
        FixedBatchSampling(self.batch_size, self.iterations)  # checks both numbers
        if self.normalize_by is not None:
            positive_number("normalize_by", self.normalize_by, "usually the batch size")

    def make(
        self,
        performance_flags: PerformanceFlags | None = None,
        *,
        secrets: PlanSecrets | None = None,
    ) -> DPExecutionPlan:
        """Makes a plan with the same interface as those of private mechanisms."""
        divisor = self.batch_size if self.normalize_by is None else self.normalize_by
        sampler = FixedBatchSampling(self.batch_size, self.iterations)
        flags = checked_flags(performance_flags)
        return DPExecutionPlan(
            Mechanism(sampler, None, "REPLACE_ONE", None),
            ClipOptions(math.inf, False, float(divisor)),
            Unit(),
            float(self.batch_size),
            flags=flags,
            secrets=flags.secrets(secrets),
        )
