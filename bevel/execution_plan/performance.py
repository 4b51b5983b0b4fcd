"""Options of a plan that do not change its guarantee."""

import dataclasses
import warnings
from typing import Literal

import jax
import numpy as np

from bevel.checks import flag, instance, one_of, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan.plan_secrets import PlanSecrets
from bevel.noise_addition import SupportedStrategies
from bevel.noise_addition.gaussian import checked_dtype


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

    def __post_init__(self) -> None:
        if isinstance(self.dtype, bool | np.bool_):
            raise FixArgumentsError(f"dtype={self.dtype}: pass a dtype such as 'bfloat16'.")
        checked_dtype(self.dtype)
        if self.noise_seed is not None:
            # JAX Privacy takes any integer.
            whole_number("noise_seed", self.noise_seed, -(2**128), 2**128)
        hint = f"SupportedStrategies.{{{', '.join(SupportedStrategies.__members__)}}}"
        instance("intermediate_strategy", self.intermediate_strategy, SupportedStrategies, hint)
        if self.microbatch_size is not None:
            whole_number("microbatch_size", self.microbatch_size)
        if self.keep_batch_dim is not None:
            flag("keep_batch_dim", self.keep_batch_dim)
        one_of("buffers_in", self.buffers_in, ("device", "host"))

    def secrets(self, given: PlanSecrets | None) -> PlanSecrets:
        """The secrets of a plan: those given, or of `noise_seed`, or new ones."""
        instance("secrets", given, PlanSecrets | None, "PlanSecrets, or None for new ones")
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


def checked_flags(flags: PerformanceFlags | None) -> PerformanceFlags:
    """Returns the flags, or the default ones for None."""
    instance("performance_flags", flags, PerformanceFlags | None, "PerformanceFlags(...), or None")
    return PerformanceFlags() if flags is None else flags
