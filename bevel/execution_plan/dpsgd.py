"""DP-SGD: independent noise at every step."""

import dataclasses
from typing import Any, Literal, Self

from bevel.batch_selection import (
    BallsInBinsSampling,
    BatchSelectionStrategy,
    CyclicPoissonSampling,
    FixedBatchSampling,
    RandomAllocationSampling,
)
from bevel.checks import positive_number, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan.config import PrivateConfig
from bevel.execution_plan.mechanism import Mechanism

Sampling = Literal["poisson", "fixed", "balls_in_bins", "random_allocation"]


@dataclasses.dataclass(frozen=True)
class DPSGDConfig(PrivateConfig):
    """DP-SGD (Abadi et al. 2016): sample, clip, sum, add independent Gaussian noise.

        DPSGDConfig.default(num_examples=60_000, expected_batch_size=1024, iterations=2_000)
            .calibrate(epsilon=3, delta=1e-5)
            .make()

    | sampling            | batches                                | relations with a proof        |
    | ------------------- | -------------------------------------- | ----------------------------- |
    | `poisson`           | every unit by itself, by chance        | all three                     |
    | the same, truncated | the same, with a cap on the batch size | replace-special, replace-one  |
    | `fixed`             | of one size, drawn afresh              | replace-one                   |
    | `balls_in_bins`     | once per epoch, at a place of its own  | add-or-remove, -special       |
    | `random_allocation` | at exactly so many steps, by chance    | add-or-remove, -special       |

    The last two are accounted for by sampling, which takes minutes for small deltas.

    Attributes:
      num_examples: how many units there are: users, if users are protected.
      expected_batch_size: units in a batch, on average.
      iterations: steps.
      sampling: see the table.
      truncated_batch_size: a cap on the size of Poisson batches.
      normalize_by: what the sum is divided by; the expected batch size by default.
      others: see `PrivateConfig`.
    """

    num_examples: int
    expected_batch_size: float
    iterations: int
    sampling: Sampling = "poisson"
    truncated_batch_size: int | None = None
    normalize_by: float | None = None

    @classmethod
    def default(
        cls, num_examples: int, expected_batch_size: float, iterations: int, **kwargs: Any
    ) -> Self:
        """Poisson sampling, a clip norm of 1, sums divided by the expected batch size."""
        return cls(num_examples, expected_batch_size, iterations, **kwargs)

    def __post_init__(self) -> None:
        whole_number("num_examples", self.num_examples, 1)
        whole_number("iterations", self.iterations, 1)
        positive_number("expected_batch_size", self.expected_batch_size, "of units in a batch")
        if self.expected_batch_size > self.num_examples:
            raise FixArgumentsError(
                f"expected_batch_size={self.expected_batch_size} of {self.num_examples} "
                f"{self.unit}s: a batch cannot be larger than all of them."
            )
        if self.truncated_batch_size is not None and self.sampling != "poisson":
            raise FixArgumentsError(
                f"truncated_batch_size with sampling={self.sampling!r}: only Poisson batches have "
                "an event with a cap. Leave it out, or use sampling='poisson'."
            )
        super().__post_init__()

    def sampler(self) -> BatchSelectionStrategy:
        size, units, steps = self.expected_batch_size, self.num_examples, self.iterations
        match self.sampling:
            case "poisson":
                return CyclicPoissonSampling(size / units, steps, self.truncated_batch_size)
            case "fixed":
                return FixedBatchSampling(as_whole("expected_batch_size", size), steps)
            case "balls_in_bins":
                cycle = as_whole("num_examples / expected_batch_size", units / size)
                return BallsInBinsSampling(steps, cycle)
            case "random_allocation":
                times = as_whole("the participations of a unit", steps * size / units)
                return RandomAllocationSampling(times, steps)
        raise FixArgumentsError(
            f"sampling={self.sampling!r}: write 'poisson', 'fixed', 'balls_in_bins' or "
            "'random_allocation'."
        )

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        return Mechanism(
            self.sampler(), self.num_examples, str(self.neighboring_relation), noise_multiplier
        )

    def divisor(self) -> float:
        return self.expected_batch_size if self.normalize_by is None else self.normalize_by

    def batch_size(self) -> float:
        return self.expected_batch_size


def as_whole(name: str, value: float) -> int:
    """`value` as an int, if it is one but for rounding."""
    nearest = round(value)
    if nearest < 1 or abs(value - nearest) > 1e-9 * nearest:
        raise FixArgumentsError(
            f"{name} = {value:g}, and this way of sampling needs a whole number there: change the "
            "batch size, the epochs or the iterations."
        )
    return nearest
