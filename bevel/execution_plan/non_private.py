"""No clipping, no noise: the baseline that private training is compared with."""

import dataclasses
import math

from bevel.batch_selection import FixedBatchSampling
from bevel.execution_plan.clip_options import ClipOptions
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.performance import PerformanceFlags
from bevel.execution_plan.plan import DPExecutionPlan
from bevel.execution_plan.plan_secrets import PlanSecrets
from bevel.execution_plan.privacy_unit import Unit


@dataclasses.dataclass(frozen=True)
class NonPrivateConfig:
    """The mean gradient of batches of one size. Nothing is protected, and its epsilon is infinite.

    Attributes:
      iterations: steps.
      batch_size: examples in a batch.
      normalize_by: what the sum is divided by; the batch size by default.
    """

    iterations: int
    batch_size: int
    normalize_by: float | None = None

    def __post_init__(self) -> None:
        FixedBatchSampling(self.batch_size, self.iterations)  # raises for what is no number

    def make(
        self,
        performance_flags: PerformanceFlags | None = None,
        *,
        secrets: PlanSecrets | None = None,
    ) -> DPExecutionPlan:
        """The plan: as those of private mechanisms, for a trainer that knows of no difference."""
        divisor = self.batch_size if self.normalize_by is None else self.normalize_by
        sampler = FixedBatchSampling(self.batch_size, self.iterations)
        return DPExecutionPlan(
            Mechanism(sampler, None, "REPLACE_ONE", None),
            ClipOptions(math.inf, False, float(divisor)),
            Unit(),
            float(self.batch_size),
            flags=performance_flags or PerformanceFlags(),
            secrets=secrets or PlanSecrets.new(),
        )
