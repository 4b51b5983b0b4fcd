"""BLT: noise that is correlated over all steps, with a few buffers and no amplification."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import numpy as np

from bevel import batch_selection as samplers
from bevel.checks import one_of, positive_number, reals, shown, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan.config import PrivateConfig
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.noise_matrices import BufferedNoise
from bevel.matrix_factorization import buffered_toeplitz
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz
from bevel.matrix_factorization.checks import checked_length

Sampling = Literal["min_sep", "cyclic_poisson", "balls_in_bins"]


@dataclasses.dataclass(frozen=True)
class BLTConfig(PrivateConfig):
    """Noise C^-1 z for a buffered linear Toeplitz matrix C (McMahan et al. 2024).

    The noise is scaled to the sensitivity of the whole run, over all participation patterns that
    the sampler allows. The randomness of the batches does not reduce it. Only samplers with a
    minimum separation between two uses of a unit are available, and they bound the number of uses.

    | sampling         | batches                                    | proven under                 |
    | ---------------- | ------------------------------------------ | ---------------------------- |
    | `min_sep`        | Poisson; units rest `min_sep - 1` steps    | all three relations          |
    | `cyclic_poisson` | Poisson, from `min_sep` groups of one size | replace-special, replace-one |
    | `balls_in_bins`  | every unit once in `min_sep` steps         | all three relations          |

    Attributes:
      num_examples: the number of units: users, if the unit is the user.
      expected_batch_size: the mean number of units in a batch. With balls in bins every unit is
        used once in `min_sep` steps, so this must be num_examples / min_sep.
      iterations: the number of steps.
      min_sep: the minimum number of steps between two uses of a unit.
      buf_decay, output_scale: the parameters of C, one float32 number per buffer.
      sampling: see the table.
      normalize_by: the divisor of the sum; the expected batch size by default.
      others: see `PrivateConfig`.
    """

    num_examples: int
    expected_batch_size: float
    iterations: int
    min_sep: int
    buf_decay: Sequence[float]
    output_scale: Sequence[float]
    sampling: Sampling = "min_sep"
    normalize_by: float | None = None

    @classmethod
    def default(
        cls,
        num_examples: int,
        expected_batch_size: float,
        iterations: int,
        *,
        min_sep: int | None = None,
        max_buffers: int = 4,
        **kwargs: Any,
    ) -> Self:
        """Makes a config with the BLT of least mean error.

        Args:
          min_sep: one epoch by default.
          max_buffers: the largest number of buffers. Each is as large as the gradient.
        """
        whole_number("num_examples", num_examples, 1)
        checked_length(iterations, "iterations")
        positive_number("expected_batch_size", expected_batch_size, "the mean batch size")
        if min_sep is None:
            min_sep = max(1, min(iterations, int(num_examples / expected_batch_size)))
        blt = buffered_toeplitz.optimize(
            n=iterations,
            min_sep=whole_number("min_sep", min_sep, 1),
            max_participations=None,
            error="mean",
            max_buffers=max_buffers,
        )
        decay, scale = blt.as_floats()
        return cls(num_examples, expected_batch_size, iterations, min_sep, decay, scale, **kwargs)

    def __post_init__(self) -> None:
        whole_number("num_examples", self.num_examples, 1)
        checked_length(self.iterations, "iterations")
        whole_number("min_sep", self.min_sep, 1)
        positive_number("expected_batch_size", self.expected_batch_size, "the mean batch size")
        why = "Other samplers have no minimum separation between two uses of a unit."
        one_of("sampling", self.sampling, get_args(Sampling), why)
        if self.normalize_by is not None:
            positive_number("normalize_by", self.normalize_by, "usually the batch size")
        if self.expected_batch_size * self.min_sep > self.num_examples * (1 + 1e-9):
            raise FixArgumentsError(
                f"expected_batch_size={self.expected_batch_size} with min_sep={self.min_sep} and "
                f"{self.num_examples} {self.unit}s: use batches of at most "
                f"{self.num_examples / self.min_sep:g}, or a smaller min_sep."
            )
        if np.any(np.abs(reals("buf_decay", self.buf_decay)) > 1):
            raise FixArgumentsError(
                f"buf_decay={shown(self.buf_decay)}: pass numbers of at most 1. With larger ones "
                "the buffers, and the sensitivity, would grow without bound."
            )
        matrix = BufferedNoise.of(BufferedToeplitz.build(self.buf_decay, self.output_scale))
        object.__setattr__(self, "buf_decay", matrix.buf_decay)
        object.__setattr__(self, "output_scale", matrix.output_scale)
        super().__post_init__()

    def sampler(self) -> samplers.BatchSelectionStrategy:
        size, units, min_sep = self.expected_batch_size, self.num_examples, self.min_sep
        match self.sampling:
            case "min_sep":
                # On average, a unit is used once every 1 / probability + min_sep - 1 steps.
                probability = min(1.0, size / (units - size * (min_sep - 1)))
                return samplers.BMinSepSampling(probability, self.iterations, min_sep)
            case "cyclic_poisson":
                return samplers.CyclicPoissonSampling.with_expected_batch_size(
                    size, units, self.iterations, cycle_length=min_sep
                )
            case "balls_in_bins":
                if abs(size * min_sep - units) > 1e-6 * units:
                    raise FixArgumentsError(
                        f"expected_batch_size={size} with sampling='balls_in_bins': every "
                        f"{self.unit} is used once in min_sep={min_sep} steps. Pass "
                        f"expected_batch_size={units / min_sep:g}."
                    )
                return samplers.BallsInBinsSampling(self.iterations, min_sep)

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        matrix = BufferedNoise(tuple(self.buf_decay), tuple(self.output_scale))
        relation = str(self.neighboring_relation)
        return Mechanism(self.sampler(), self.num_examples, relation, noise_multiplier, matrix)

    def divisor(self) -> float:
        return self.expected_batch_size if self.normalize_by is None else self.normalize_by

    def batch_size(self) -> float:
        return self.expected_batch_size
