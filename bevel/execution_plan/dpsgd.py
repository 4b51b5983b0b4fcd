"""DP-SGD: independent Gaussian noise at every step."""

import dataclasses
from typing import Any, Literal, Self, get_args

from bevel import batch_selection as samplers
from bevel.checks import one_of, positive_number, shown, whole_number
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

    | sampling            | batches                               | proven under                   |
    | ------------------- | ------------------------------------- | ------------------------------ |
    | `poisson`           | each unit independently, at random    | all three relations            |
    | the same, truncated | the same, with a largest batch size   | replace-special, replace-one   |
    | `fixed`             | of fixed size, random at every step   | replace-one                    |
    | `balls_in_bins`     | each unit at a random step per epoch  | add-or-remove, replace-special |
    | `random_allocation` | each unit at k random steps of a run  | add-or-remove, replace-special |

    The last two are accounted for by Monte Carlo sampling, which takes minutes for small deltas.

    Attributes:
      num_examples: the number of units: users, if the unit is the user.
      expected_batch_size: the mean number of units in a batch.
      iterations: the number of steps.
      sampling: see the table.
      truncated_batch_size: the largest size of Poisson batches.
      normalize_by: the divisor of the sum; the expected batch size by default.
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
        """Makes a config with Poisson sampling and sums divided by the expected batch size."""
        return cls(num_examples, expected_batch_size, iterations, **kwargs)

    def __post_init__(self) -> None:
        whole_number("num_examples", self.num_examples, 1)
        whole_number("iterations", self.iterations, 1)
        positive_number("expected_batch_size", self.expected_batch_size, "the mean batch size")
        if self.expected_batch_size > self.num_examples:
            raise FixArgumentsError(
                f"expected_batch_size={self.expected_batch_size}: pass at most "
                f"{self.num_examples}, the number of {self.unit}s."
            )
        one_of("sampling", self.sampling, get_args(Sampling))
        if self.normalize_by is not None:
            positive_number("normalize_by", self.normalize_by, "usually the batch size")
        if self.truncated_batch_size is not None and self.sampling != "poisson":
            raise FixArgumentsError(
                f"truncated_batch_size with sampling={shown(self.sampling)}: only Poisson batches "
                "can be truncated. Leave it out, or use sampling='poisson'."
            )
        super().__post_init__()

    def sampler(self) -> samplers.BatchSelectionStrategy:
        size, units, steps = self.expected_batch_size, self.num_examples, self.iterations
        match self.sampling:
            case "poisson":
                cap = self.truncated_batch_size
                return samplers.CyclicPoissonSampling(size / units, steps, cap)
            case "fixed":
                return samplers.FixedBatchSampling(as_integer("expected_batch_size", size), steps)
            case "balls_in_bins":
                cycle = as_integer("num_examples / expected_batch_size", units / size)
                return samplers.BallsInBinsSampling(steps, cycle)
            case "random_allocation":
                name = "iterations * expected_batch_size / num_examples"
                uses = as_integer(name, steps * size / units)
                return samplers.RandomAllocationSampling(uses, steps)

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        return Mechanism(
            self.sampler(), self.num_examples, str(self.neighboring_relation), noise_multiplier
        )

    def divisor(self) -> float:
        return self.expected_batch_size if self.normalize_by is None else self.normalize_by

    def batch_size(self) -> float:
        return self.expected_batch_size


def as_integer(name: str, value: float) -> int:
    """Returns `value` as an int; raises unless it is a positive integer up to rounding."""
    nearest = round(value)
    if nearest < 1 or abs(value - nearest) > 1e-9 * nearest:
        raise FixArgumentsError(
            f"{name} is {value:g}, but this sampling needs an integer: change the batch size, "
            "the epochs or the iterations."
        )
    return nearest
