"""How the noise of a plan is correlated over steps: C, for noise C^-1 z."""

import dataclasses
import math
from typing import Any, Protocol

import numpy as np

from bevel.batch_selection import Participation
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import toeplitz
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import mean_error
from bevel.matrix_factorization.buffered_toeplitz.search import in_float32
from bevel.matrix_factorization.toeplitz.participation import column_norms


class NoiseMatrix(Protocol):
    """C: its sensitivity, its inverse as a stream, and the error of what it adds.

    Entries are numbers that float32 holds, so that the noise is made with the very matrix whose
    sensitivity was computed.
    """

    @property
    def amplified(self) -> bool:
        """Whether the chance in the batches counts."""

    def matrix(self, steps: int) -> np.ndarray:
        """The first column of C, for so many steps: what the event of a sampler takes."""

    def sensitivity(self, steps: int, participation: Participation) -> float:
        """What a noise multiplier is relative to, for a bound of 1.

        With amplification the largest column norm: the event knows of the uses. Without, the
        sensitivity over all patterns of use that `participation` allows.
        """

    def noising_matrix(self, steps: int) -> Any:
        """C^-1 as a stream; None for the identity."""

    def mean_error(self, steps: int) -> float:
        """Mean variance of the prefix sums of C^-1 z, for z of variance 1."""

    def row_norms(self, steps: int) -> np.ndarray | None:
        """Norms of the rows of C^-1; None where all are 1."""

    def __str__(self) -> str:
        """In a few words."""


@dataclasses.dataclass(frozen=True)
class IndependentNoise:
    """C is the identity: fresh noise at every step."""

    @property
    def amplified(self) -> bool:
        return True

    def matrix(self, steps: int) -> np.ndarray:
        del steps
        return np.ones(1)

    def sensitivity(self, steps: int, participation: Participation) -> float:
        del steps, participation
        return 1.0

    def noising_matrix(self, steps: int) -> Any:
        del steps

    def mean_error(self, steps: int) -> float:
        return (steps + 1) / 2

    def row_norms(self, steps: int) -> np.ndarray | None:
        del steps
        return None

    def __str__(self) -> str:
        return "independent at every step"


@dataclasses.dataclass(frozen=True)
class BandedNoise:
    """C is a banded Toeplitz matrix; or one for n steps, each column scaled to norm 1."""

    coefs: tuple[float, ...]
    column_normalize_for_n: int | None = None

    @classmethod
    def of(cls, coefs: Any, column_normalize_for_n: int | None) -> "BandedNoise":
        """From the first column, in any form. Zeros at its end are no bands."""
        column = np.atleast_1d(np.asarray(coefs, np.float32))
        if column.ndim != 1 or not (column.size and column[0] and np.isfinite(column).all()):
            raise FixArgumentsError(
                f"strategy has shape {column.shape}: give the first column of a banded Toeplitz "
                "matrix, finite numbers of which the first is not 0."
            )
        bands = int(np.flatnonzero(column)[-1]) + 1
        return cls(tuple(column[:bands].tolist()), column_normalize_for_n)

    @property
    def amplified(self) -> bool:
        return True

    @property
    def column(self) -> Any:
        return np.asarray(self.coefs)

    def matrix(self, steps: int) -> np.ndarray:
        return self.column[:steps]

    def sensitivity(self, steps: int, participation: Participation) -> float:
        del participation  # the event has as many mechanisms as there are uses
        norms = column_norms(self.column, steps)
        n = self.column_normalize_for_n
        if n is None:
            return float(norms[0])
        whole = column_norms(self.column, n)[:steps]
        # Columns are scaled in float32: their norms are 1 but for that.
        return float(np.max(norms / whole)) * (1 + 2.0**-21)

    def noising_matrix(self, steps: int) -> Any:
        del steps
        column = self.column.astype(np.float32)
        return toeplitz.inverse_as_streaming_matrix(column, self.column_normalize_for_n)

    def mean_error(self, steps: int) -> float:
        if self.column_normalize_for_n is None:
            return float(np.mean(toeplitz.per_query_error(strategy_coef=self.column, n=steps)))
        # Column j of A C^-1 is the running sum of the scaled column j of the Toeplitz inverse.
        inverse = toeplitz.inverse_coef(self.column, steps)
        scale = column_norms(self.column, self.column_normalize_for_n)[:steps]
        squares = sum(
            float(np.sum(np.cumsum(scale[j:] * inverse[: steps - j]) ** 2)) for j in range(steps)
        )
        return squares / steps

    def row_norms(self, steps: int) -> np.ndarray | None:
        norms = np.sqrt(np.cumsum(toeplitz.inverse_coef(self.column, steps) ** 2))
        n = self.column_normalize_for_n
        return norms if n is None else norms * column_norms(self.column, n)[:steps]

    def __str__(self) -> str:
        bands = len(self.coefs)
        return f"correlated over {bands} step{'s' * (bands > 1)}: C has {bands} bands"


@dataclasses.dataclass(frozen=True)
class BufferedNoise:
    """C is a buffered linear Toeplitz matrix (BLT). No amplification is proven for it."""

    buf_decay: tuple[float, ...]
    output_scale: tuple[float, ...]

    @classmethod
    def of(cls, blt: BufferedToeplitz) -> "BufferedNoise":
        exact = in_float32(blt)
        decay, scale = exact.as_floats()
        return cls(tuple(decay.tolist()), tuple(scale.tolist()))

    @property
    def blt(self) -> BufferedToeplitz:
        return BufferedToeplitz.build(self.buf_decay, self.output_scale)

    @property
    def amplified(self) -> bool:
        return False

    def matrix(self, steps: int) -> np.ndarray:
        return self.blt.toeplitz_coefs(steps)

    def sensitivity(self, steps: int, participation: Participation) -> float:
        coefs: Any = self.matrix(steps)
        squared = toeplitz.minsep_sensitivity_squared(
            coefs,
            participation.min_separation,
            n=steps,
            max_participations=participation.max_participations,
        )
        return math.sqrt(squared)

    def noising_matrix(self, steps: int) -> Any:
        del steps
        return self.blt.inverse_as_streaming_matrix()

    def mean_error(self, steps: int) -> float:
        return float(mean_error(self.blt.inverse(), steps))

    def row_norms(self, steps: int) -> np.ndarray | None:
        return np.sqrt(np.cumsum(self.blt.inverse().toeplitz_coefs(steps) ** 2))

    def __str__(self) -> str:
        count = len(self.buf_decay)
        return f"correlated over all steps: C is a BLT of {count} buffer{'s' * (count != 1)}"
