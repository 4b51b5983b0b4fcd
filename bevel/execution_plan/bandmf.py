"""BandMF: noise that is correlated over a few steps, with amplification by sampling."""

import dataclasses
from typing import Any, Literal, Self

from dp_accounting import NeighboringRelation

from bevel import batch_selection as samplers
from bevel.batch_selection import PartitionType
from bevel.checks import flag, one_of, positive_number, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan.clip_options import ClipOptions
from bevel.execution_plan.config import PrivateConfig
from bevel.execution_plan.dpsgd import as_integer
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.noise_matrices import BandedNoise, IndependentNoise
from bevel.matrix_factorization import toeplitz
from bevel.matrix_factorization.checks import checked_length


@dataclasses.dataclass(frozen=True)
class BandMFConfig(PrivateConfig):
    """BandMF (Choquette-Choo et al. 2023): noise C^-1 z for a banded Toeplitz matrix C.

    The units are split into as many groups as C has bands, and step t samples from group t % bands.
    Two uses of a unit are then at least `bands` steps apart, so they share no noise, and sampling
    amplifies their privacy. With one band this is DP-SGD.

    | sampling         | batches                                | proven under                   |
    | ---------------- | -------------------------------------- | ------------------------------ |
    | `cyclic_poisson` | Poisson, from groups of equal size     | replace-special                |
    | the same         | groups of random size (`INDEPENDENT`)  | all three relations            |
    | `balls_in_bins`  | each unit at a random step of an epoch | add-or-remove, replace-special |

    Balls in bins are accounted for by Monte Carlo sampling, which takes minutes for small deltas.

    Attributes:
      iterations: the number of steps.
      expected_participations: the mean number of steps that use a unit, i.e. the epochs.
      strategy: the first column of C, one number per band. It is rounded to float32.
      normalize_by: the divisor of the sum, usually the expected batch size.
      truncated_batch_size: the largest batch size; needs `num_examples`.
      num_examples: the number of units: users, if the unit is the user.
      column_normalize: scale every column of C to norm 1, including the last, shorter ones.
      sampling: see the table.
      partition_type: how units are split into groups.
      others: see `PrivateConfig`. The default relation is replace-special.
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
        """Makes a config with the banded Toeplitz C of least mean error of the prefix sums."""
        checked_length(iterations, "iterations")
        if whole_number("num_bands", num_bands, 1) > iterations:
            raise FixArgumentsError(
                f"num_bands={num_bands}: pass at most {iterations}, the number of steps."
            )
        strategy = toeplitz.optimize_banded_toeplitz(
            iterations, num_bands, max_optimizer_steps=strategy_optimization_steps
        )
        return cls(iterations, expected_participations, strategy, **kwargs)

    def __post_init__(self) -> None:
        checked_length(self.iterations, "iterations")
        positive_number(
            "expected_participations", self.expected_participations, "the epochs of the run"
        )
        positive_number("normalize_by", self.normalize_by, "usually the expected batch size")
        flag("column_normalize", self.column_normalize)
        one_of("sampling", self.sampling, ("cyclic_poisson", "balls_in_bins"))
        object.__setattr__(self, "strategy", BandedNoise.of(self.strategy, None).coefs)
        if self.num_bands > self.iterations:
            raise FixArgumentsError(
                f"strategy has {self.num_bands} bands, but there are {self.iterations} steps: pass "
                "at most one number per step."
            )
        if self.num_examples is not None:
            whole_number("num_examples", self.num_examples, 1)
            if self.num_examples < self.num_bands and self._has_equal_groups:
                raise FixArgumentsError(
                    f"num_examples={self.num_examples} with {self.num_bands} bands: an equal split "
                    "leaves every group empty. Use fewer bands, or PartitionType.INDEPENDENT."
                )
        elif self.truncated_batch_size is not None:
            raise FixArgumentsError(
                "truncated_batch_size needs num_examples, because the event of a truncated batch "
                "depends on it."
            )
        if self.sampling == "balls_in_bins" and (
            self.column_normalize or self.truncated_batch_size is not None
        ):
            raise FixArgumentsError(
                "column_normalize and truncated_batch_size have no proven event with "
                "sampling='balls_in_bins'. Leave them out, or use 'cyclic_poisson'."
            )
        super().__post_init__()

    @property
    def num_bands(self) -> int:
        """The number of steps over which noise is correlated."""
        return len(self.strategy)

    @property
    def sampling_prob(self) -> float:
        """The sampling probability of a unit at the steps of its group."""
        probability = self.expected_participations * self.num_bands / self.iterations
        if probability > 1 + 1e-9:
            raise FixArgumentsError(
                f"expected_participations={self.expected_participations} with {self.num_bands} "
                f"bands and {self.iterations} steps: a unit is used once in {self.num_bands} "
                f"steps. Pass at most {self.iterations / self.num_bands:g}, or fewer bands."
            )
        return min(probability, 1.0)

    def sampler(self) -> samplers.BatchSelectionStrategy:
        if self.sampling == "balls_in_bins":
            cycle = self.iterations / self.expected_participations
            return samplers.BallsInBinsSampling(
                self.iterations, as_integer("iterations / expected_participations", cycle)
            )
        prob, cap = self.sampling_prob, self.truncated_batch_size
        return samplers.CyclicPoissonSampling(
            prob, self.iterations, cap, self.num_bands, self.partition_type
        )

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        n = self.iterations if self.column_normalize else None
        matrix = BandedNoise.of(self.strategy, n) if self.num_bands > 1 else IndependentNoise()
        relation = str(self.neighboring_relation)
        return Mechanism(self.sampler(), self.num_examples, relation, noise_multiplier, matrix)

    def divisor(self) -> float:
        return self.normalize_by

    def batch_size(self) -> float | None:
        if self.num_examples is None:
            return None
        if self.sampling == "balls_in_bins":
            return self.num_examples * self.expected_participations / self.iterations
        groups, equal = self.num_bands, self._has_equal_groups
        group = self.num_examples // groups if equal else self.num_examples / groups
        return self.sampling_prob * group

    @property
    def _has_equal_groups(self) -> bool:
        cyclic = self.sampling == "cyclic_poisson"
        return cyclic and self.partition_type is PartitionType.EQUAL_SPLIT

    @property
    def rmse(self) -> float:
        """The error of the mechanism: `DPExecutionPlan.rmse` without adaptive clipping."""
        if self.noise_multiplier is None:
            raise FixArgumentsError("noise_multiplier is not set: call calibrate(...) first.")
        mechanism = self.mechanism(self.noise_multiplier)
        clip = ClipOptions(self.l2_clip_norm, self.rescale_to_unit_norm, self.normalize_by)
        return mechanism.rmse(self.noise_multiplier * clip.l2_norm_bound)
