"""Options of a plan that change speed and memory, and nothing that is promised."""

import dataclasses
from typing import Literal

import jax

from bevel.errors import FixArgumentsError
from bevel.noise_addition import SupportedStrategies


@dataclasses.dataclass(frozen=True)
class PerformanceFlags:
    """How a plan is computed. Privacy does not depend on any of these.

    Attributes:
      dtype: of the noised gradient, which is cast after the noise was added. Sums and noise are in
        float32 or wider in any case, and so is the result if None. The one option here that is in
        the plan's fingerprint: it changes the released numbers.
      intermediate_strategy: where noise and its buffers lie, see `SupportedStrategies`.
      buffers_in: 'host' keeps the buffers of correlated noise in the host's memory between steps.
      microbatch_size: so many examples (or users) at a time.
      spmd_axis_name: accepted for compatibility; not needed.
      keep_batch_dim: follows from the unit of privacy: True for examples, False for users. Leave
        it out; a value that contradicts the unit is an error.
      noise_seed: refused. A seed decides whether noise is secret: it is no speed option.
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
                "noise_seed is no speed option: who guesses it can take the noise off. Leave it "
                "out, and the plan draws its key from the operating system. For tests: "
                "config.make(secrets=PlanSecrets.for_tests(seed))."
            )
