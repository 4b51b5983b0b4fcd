"""Options of a plan that do not change its guarantee."""

import dataclasses
from typing import Literal

import jax

from bevel.errors import FixArgumentsError
from bevel.noise_addition import SupportedStrategies


@dataclasses.dataclass(frozen=True)
class PerformanceFlags:
    """How a plan is computed. Privacy does not depend on any of these.

    Attributes:
      dtype: the dtype of the noised gradient, which is cast after the noise is added. Sums and
        noise are always float32 or wider; None keeps that dtype. This is the only option here that
        changes the released numbers, so it is part of the plan's fingerprint.
      intermediate_strategy: the layout of noise and its buffers, see `SupportedStrategies`.
      buffers_in: 'host' keeps the buffers of correlated noise in host memory between steps.
      microbatch_size: the number of examples (or users) to process at a time.
      spmd_axis_name: accepted for compatibility with JAX Privacy; not needed.
      keep_batch_dim: follows from the unit of privacy: True for examples, False for users. Leave
        it out. A value that contradicts the unit is an error.
      noise_seed: not accepted, because anyone who guesses a seed can remove the noise.
    """

    dtype: jax.typing.DTypeLike | None = None
    intermediate_strategy: SupportedStrategies = SupportedStrategies.DEFAULT
    buffers_in: Literal["device", "host"] = "device"
    microbatch_size: int | None = None
    spmd_axis_name: str | None = None
    keep_batch_dim: bool | None = None
    noise_seed: dataclasses.InitVar[int | None] = None

    def __post_init__(self, noise_seed: int | None) -> None:
        if noise_seed is not None:
            raise FixArgumentsError(
                "noise_seed is not a performance option: anyone who guesses it can remove the "
                "noise. Leave it out, and the plan draws its key from the operating system. For "
                "tests, use config.make(secrets=PlanSecrets.for_tests(seed))."
            )
