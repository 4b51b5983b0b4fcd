"""Options of a plan that do not change its guarantee."""

import dataclasses
import warnings
from typing import Literal

import jax

from bevel.errors import FixArgumentsError
from bevel.execution_plan.plan_secrets import PlanSecrets
from bevel.noise_addition import SupportedStrategies


@dataclasses.dataclass(frozen=True)
class PerformanceFlags:
    """How a plan is computed. Except for `noise_seed`, privacy does not depend on these.

    Attributes:
      dtype: the dtype of the noised gradient, which is cast after the noise is added. Sums and
        noise are always float32 or wider; None keeps that dtype. This is the only option here that
        changes the released numbers, so it is part of the plan's fingerprint.
      noise_seed: for tests only: anyone who guesses a seed can remove the noise. The plan is made
        with `PlanSecrets.for_tests(noise_seed)`, warns, and records that its key is not secret.
      intermediate_strategy: the layout of noise and its buffers, see `SupportedStrategies`.
      microbatch_size: the number of examples (or users) to process at a time.
      spmd_axis_name: accepted for compatibility with JAX Privacy; not needed.
      keep_batch_dim: follows from the unit of privacy: True for examples, False for users. Leave
        it out. A value that contradicts the unit is an error.
      buffers_in: 'host' keeps the buffers of correlated noise in host memory between steps.
    """

    dtype: jax.typing.DTypeLike | None = None
    noise_seed: int | None = None
    intermediate_strategy: SupportedStrategies = SupportedStrategies.DEFAULT
    microbatch_size: int | None = None
    spmd_axis_name: str | None = None
    keep_batch_dim: bool | None = None
    buffers_in: Literal["device", "host"] = "device"

    def secrets(self, given: PlanSecrets | None) -> PlanSecrets:
        """The secrets of a plan: those given, or of `noise_seed`, or new ones."""
        if self.noise_seed is None:
            return given or PlanSecrets.new()
        if given is not None:
            raise FixArgumentsError(
                "noise_seed and secrets are both given: leave out noise_seed, which is for tests."
            )
        warnings.warn(
            "Leave out noise_seed for real data: anyone who guesses it can remove the noise. "
            "This plan records that its key is not secret.",
            stacklevel=3,
        )
        return PlanSecrets.for_tests(self.noise_seed)
