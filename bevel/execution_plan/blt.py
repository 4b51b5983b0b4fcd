"""BLT: noise that is correlated over all steps by a few buffers, without amplification."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Self

from bevel.batch_selection import (
    BallsInBinsSampling,
    BatchSelectionStrategy,
    BMinSepSampling,
    CyclicPoissonSampling,
)
from bevel.checks import positive_number, whole_number
from bevel.errors import FixArgumentsError
from bevel.execution_plan.config import PrivateConfig
from bevel.execution_plan.mechanism import Mechanism
from bevel.execution_plan.noise_matrices import BufferedNoise
from bevel.matrix_factorization import buffered_toeplitz
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz


@dataclasses.dataclass(frozen=True)
class BLTConfig(PrivateConfig):
    """Noise C^-1 z for a buffered linear Toeplitz matrix C (McMahan et al. 2024).

    The noise is scaled to the sensitivity of the whole run over all patterns of use that the
    sampler allows, and the chance in the batches counts for nothing. So only samplers that keep
    the uses of a unit apart can be had here, and the number of uses is theirs.

    | sampling         | batches                                       | proven under             |
    | ---------------- | --------------------------------------------- | ------------------------ |
    | `min_sep`        | Poisson, of those that rested `min_sep` steps | all three                |
    | `cyclic_poisson` | Poisson, from one of `min_sep` equal groups   | replace-special and -one |
    | `balls_in_bins`  | every unit once in `min_sep` steps            | all three                |

    Attributes:
      num_examples: how many units there are: users, if users are protected.
      expected_batch_size: units in a batch, on average. With balls in bins every unit takes part
        once in `min_sep` steps, so this must be num_examples / min_sep.
      iterations: steps.
      min_sep: two uses of a unit are at least so many steps apart.
      buf_decay, output_scale: of C, one number per buffer. They are rounded to float32.
      normalize_by: what the sum is divided by; the expected batch size by default.
      others: see `PrivateConfig`.
    """

    num_examples: int
    expected_batch_size: float
    iterations: int
    min_sep: int
    buf_decay: Sequence[float]
    output_scale: Sequence[float]
    sampling: Literal["min_sep", "cyclic_poisson", "balls_in_bins"] = "min_sep"
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
        """With the BLT of the smallest mean error.

        Args:
          min_sep: an epoch by default, as long as batches of that size allow.
          max_buffers: noise keeps a copy of the gradient for each.
        """
        whole_number("num_examples", num_examples, 1)
        whole_number("iterations", iterations, 1)
        positive_number("expected_batch_size", expected_batch_size, "of units in a batch")
        if min_sep is None:
            min_sep = max(1, min(iterations, int(num_examples / expected_batch_size)))
        found = buffered_toeplitz.optimize(
            n=iterations,
            min_sep=whole_number("min_sep", min_sep, 1),
            max_participations=None,
            error="mean",
            max_buffers=max_buffers,
        )
        decay, scale = found.as_floats()
        return cls(num_examples, expected_batch_size, iterations, min_sep, decay, scale, **kwargs)

    def __post_init__(self) -> None:
        whole_number("num_examples", self.num_examples, 1)
        whole_number("iterations", self.iterations, 1)
        whole_number("min_sep", self.min_sep, 1)
        positive_number("expected_batch_size", self.expected_batch_size, "of units in a batch")
        if self.expected_batch_size * self.min_sep > self.num_examples * (1 + 1e-9):
            raise FixArgumentsError(
                f"expected_batch_size={self.expected_batch_size} with min_sep={self.min_sep}: "
                f"{self.num_examples} {self.unit}s that rest so long fill batches of at most "
                f"{self.num_examples / self.min_sep:g}. Give a smaller batch or separation."
            )
        exact = BufferedNoise.of(BufferedToeplitz.build(self.buf_decay, self.output_scale))
        object.__setattr__(self, "buf_decay", exact.buf_decay)
        object.__setattr__(self, "output_scale", exact.output_scale)
        super().__post_init__()

    def sampler(self) -> BatchSelectionStrategy:
        size, units, apart = self.expected_batch_size, self.num_examples, self.min_sep
        match self.sampling:
            case "min_sep":
                # In the long run a unit is used every 1 / chance + min_sep - 1 steps.
                chance = min(1.0, size / (units - size * (apart - 1)))
                return BMinSepSampling(chance, self.iterations, apart)
            case "cyclic_poisson":
                return CyclicPoissonSampling.with_expected_batch_size(
                    size, units, self.iterations, cycle_length=apart
                )
            case "balls_in_bins":
                if abs(size * apart - units) > 1e-6 * units:
                    raise FixArgumentsError(
                        f"expected_batch_size={size} with balls in bins: every {self.unit} takes "
                        f"part once in min_sep={apart} steps, so batches have {units / apart:g}."
                    )
                return BallsInBinsSampling(self.iterations, apart)
        raise FixArgumentsError(
            f"sampling={self.sampling!r}: write 'min_sep', 'cyclic_poisson' or 'balls_in_bins'. "
            "Other samplers do not keep the uses of a unit apart."
        )

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        return Mechanism(
            self.sampler(),
            self.num_examples,
            str(self.neighboring_relation),
            noise_multiplier,
            BufferedNoise(tuple(self.buf_decay), tuple(self.output_scale)),
        )

    def divisor(self) -> float:
        return self.expected_batch_size if self.normalize_by is None else self.normalize_by

    def batch_size(self) -> float:
        return self.expected_batch_size
