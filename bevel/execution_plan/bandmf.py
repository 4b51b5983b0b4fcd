"""BandMF: noise that is correlated over a few steps, with amplification by cyclic sampling."""

import dataclasses
from typing import Any, Literal, Self

from dp_accounting import NeighboringRelation

from bevel.batch_selection import (
    BallsInBinsSampling,
    BatchSelectionStrategy,
    CyclicPoissonSampling,
    PartitionType,
)
from bevel.checks import positive_number, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan.clip_options import ClipOptions
from bevel.execution_plan.config import PrivateConfig
from bevel.execution_plan.dpsgd import as_whole
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.noise_matrices import BandedNoise, IndependentNoise
from bevel.matrix_factorization import toeplitz


@dataclasses.dataclass(frozen=True)
class BandMFConfig(PrivateConfig):
    """BandMF (Choquette-Choo et al. 2023): noise C^-1 z, C banded and Toeplitz.

    Units are put into as many groups as there are bands, and step t samples from group t % bands:
    two uses of a unit are then at least `bands` steps apart, share no noise, and are amplified by
    sampling. One band is DP-SGD.

    | sampling         | batches                                     | proven under               |
    | ---------------- | ------------------------------------------- | -------------------------- |
    | `cyclic_poisson` | Poisson, from a group of an equal split     | replace-special            |
    | the same         | from groups of random sizes (`INDEPENDENT`) | all three                  |
    | `balls_in_bins`  | every unit once per epoch, at its own place | add-or-remove and -special |

    The last one is accounted for by sampling, which takes minutes for small deltas.

    Attributes:
      iterations: steps.
      expected_participations: steps that a unit joins on average: the epochs.
      strategy: the first column of C, one number per band. It is rounded to float32.
      normalize_by: what the sum is divided by: usually the expected batch size.
      truncated_batch_size: a cap on the batch size; needs `num_examples`.
      num_examples: how many units there are: users, if users are protected.
      column_normalize: scale every column of C to norm 1, the last ones too.
      partition_type: how units are put into groups.
      others: see `PrivateConfig`. The relation is replace-special by default.
    """

    iterations: int
    expected_participations: float
    strategy: Any
    _: dataclasses.KW_ONLY
    normalize_by: float = 1.0
    truncated_batch_size: int | None = None
    num_examples: int | None = None
    column_normalize: bool = False
    sampling: Literal["cyclic_poisson", "balls_in_bins"] = "cyclic_poisson"
    partition_type: PartitionType = PartitionType.EQUAL_SPLIT
    neighboring_relation: str | NeighboringRelation = "REPLACE_SPECIAL"

    @classmethod
    def default(
        cls,
        num_bands: int,
        iterations: int,
        expected_participations: float,
        strategy_optimization_steps: int = 500,
        **kwargs: Any,
    ) -> Self:
        """With the banded Toeplitz C of the smallest mean error of prefix sums."""
        whole_number("iterations", iterations, 1)
        if whole_number("num_bands", num_bands, 1) > iterations:
            raise FixArgumentsError(f"num_bands={num_bands}: there are only {iterations} steps.")
        strategy = toeplitz.optimize_banded_toeplitz(
            iterations, num_bands, max_optimizer_steps=strategy_optimization_steps
        )
        return cls(iterations, expected_participations, strategy, **kwargs)

    def __post_init__(self) -> None:
        whole_number("iterations", self.iterations, 1)
        positive_number(
            "expected_participations", self.expected_participations, "the epochs of the run"
        )
        positive_number("normalize_by", self.normalize_by, "as the expected batch size is")
        object.__setattr__(self, "strategy", BandedNoise.of(self.strategy, None).coefs)
        if self.num_bands > self.iterations:
            raise FixArgumentsError(
                f"strategy has {self.num_bands} bands, and there are {self.iterations} steps: give "
                "at most one number per step."
            )
        if self.num_examples is not None:
            whole_number("num_examples", self.num_examples, 1)
        elif self.truncated_batch_size is not None:
            raise FixArgumentsError(
                "truncated_batch_size needs num_examples: the event of a truncated batch depends "
                "on how many there are."
            )
        if self.sampling == "balls_in_bins" and (
            self.column_normalize or self.truncated_batch_size is not None
        ):
            raise FixArgumentsError(
                "column_normalize and truncated_batch_size are for sampling='cyclic_poisson': no "
                "event is proven for them with balls in bins. Leave them out."
            )
        super().__post_init__()

    @property
    def num_bands(self) -> int:
        """Steps over which noise is correlated."""
        return len(self.strategy)

    @property
    def sampling_prob(self) -> float:
        """Of a unit, at the steps of its group."""
        chance = self.expected_participations * self.num_bands / self.iterations
        if chance > 1 + 1e-9:
            raise FixArgumentsError(
                f"expected_participations={self.expected_participations} with {self.num_bands} "
                f"bands and {self.iterations} steps: a unit can join once in {self.num_bands} "
                f"steps, so give at most {self.iterations / self.num_bands:g}, or fewer bands."
            )
        return min(chance, 1.0)

    def sampler(self) -> BatchSelectionStrategy:
        if self.sampling == "balls_in_bins":
            cycle = self.iterations / self.expected_participations
            return BallsInBinsSampling(
                self.iterations, as_whole("iterations / expected_participations", cycle)
            )
        if self.sampling != "cyclic_poisson":
            raise FixArgumentsError(
                f"sampling={self.sampling!r}: write 'cyclic_poisson' or 'balls_in_bins'."
            )
        return CyclicPoissonSampling(
            self.sampling_prob,
            self.iterations,
            self.truncated_batch_size,
            self.num_bands,
            self.partition_type,
        )

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        n = self.iterations if self.column_normalize else None
        strategy = BandedNoise.of(self.strategy, n) if self.num_bands > 1 else IndependentNoise()
        return Mechanism(
            self.sampler(),
            self.num_examples,
            str(self.neighboring_relation),
            noise_multiplier,
            strategy,
        )

    def divisor(self) -> float:
        return self.normalize_by

    def batch_size(self) -> float | None:
        if self.num_examples is None:
            return None
        if self.sampling == "balls_in_bins":
            return self.num_examples * self.expected_participations / self.iterations
        equal = self.partition_type is PartitionType.EQUAL_SPLIT
        group = self.num_examples // self.num_bands if equal else self.num_examples / self.num_bands
        return self.sampling_prob * group

    @property
    def rmse(self) -> float:
        """Error of the mechanism: as `DPExecutionPlan.rmse`, without adaptive clipping."""
        if self.noise_multiplier is None:
            raise FixArgumentsError("the noise multiplier is not known: calibrate first.")
        mechanism = self.mechanism(self.noise_multiplier)
        clip = ClipOptions(self.l2_clip_norm, self.rescale_to_unit_norm, self.normalize_by)
        return mechanism.rmse(self.noise_multiplier * clip.l2_norm_bound)
