"""Noise matrices: C, for noise C^-1 z that is correlated over the steps of a plan."""

import dataclasses
import math
from typing import Any, ClassVar, Protocol

import numpy as np

from bevel.batch_selection import Participation
from bevel.checks import reals, shown
from bevel.errors import FixArgumentsError
from bevel.matrix_factorization import toeplitz
from bevel.matrix_factorization.buffered_toeplitz import BufferedToeplitz
from bevel.matrix_factorization.buffered_toeplitz.closed_forms import mean_error
from bevel.matrix_factorization.buffered_toeplitz.search import in_float32
from bevel.matrix_factorization.toeplitz.participation import column_norms


class NoiseMatrix(Protocol):
    """C: its sensitivity, its inverse as a streaming matrix, and the error of its noise.

    The parameters of C are float32 numbers, so that the noise uses exactly the matrix whose
    sensitivity was computed.
    """

    recorded_name: ClassVar[str]  # in fingerprints and run records: must never change
    amplified: ClassVar[bool]  # whether the event includes amplification by sampling

    def first_column(self, steps: int) -> np.ndarray:
        """Returns the first column of C for `steps` steps, without zeros after the last band."""

    def sensitivity(self, steps: int, participation: Participation) -> float:
        """Returns the sensitivity of C, for a bound of 1.

        With amplification it is the largest column norm, because the event accounts for the number
        of uses. Without, it covers all participation patterns that `participation` allows.
        """

    def noising_matrix(self, steps: int) -> Any:
        """Returns C^-1 as a `StreamingMatrix`; None for the identity."""

    def mean_error(self, steps: int) -> float:
        """Returns the mean variance of the prefix sums of C^-1 z, for z of variance 1."""

    def row_norms(self, steps: int) -> np.ndarray | None:
        """Returns the norms of the rows of C^-1; None if all are 1."""

    def __str__(self) -> str:
        """Describes the noise in a few words."""


@dataclasses.dataclass(frozen=True)
class IndependentNoise:
    """C is the identity: independent noise at every step."""

    recorded_name: ClassVar[str] = "Independent"
    amplified: ClassVar[bool] = True

    def first_column(self, steps: int) -> np.ndarray:
        return np.ones(1)

    def sensitivity(self, steps: int, participation: Participation) -> float:
        return 1.0

    def noising_matrix(self, steps: int) -> Any:
        return None

    def mean_error(self, steps: int) -> float:
        return (steps + 1) / 2

    def row_norms(self, steps: int) -> np.ndarray | None:
        return None

    def __str__(self) -> str:
        return "independent at every step"


@dataclasses.dataclass(frozen=True)
class BandedNoise:
    """C is a banded Toeplitz matrix, optionally with the columns for n steps scaled to norm 1."""

    recorded_name: ClassVar[str] = "Banded"
    amplified: ClassVar[bool] = True
    coefs: tuple[float, ...]
    column_normalize_for_n: int | None = None

    @classmethod
    def of(cls, coefs: Any, column_normalize_for_n: int | None) -> "BandedNoise":
        """Makes the matrix from its first column, without trailing zeros."""
        hint = "pass the first column of a banded Toeplitz matrix"
        column = np.atleast_1d(reals("strategy", coefs, (0, 1), hint))
        with np.errstate(over="ignore"):
            column = column.astype(np.float32)
        if not (column.size and column[0] and np.isfinite(column).all()):
            raise FixArgumentsError(
                f"strategy={shown(coefs)}: pass the first column of a banded Toeplitz matrix, "
                "finite float32 numbers of which the first is not 0."
            )
        bands = int(np.flatnonzero(column)[-1]) + 1
        return cls(tuple(column[:bands].tolist()), column_normalize_for_n)

    @property
    def column(self) -> Any:
        return np.asarray(self.coefs)

    def first_column(self, steps: int) -> np.ndarray:
        return self.column[:steps]

    def sensitivity(self, steps: int, participation: Participation) -> float:
        norms = column_norms(self.column, steps)
        n = self.column_normalize_for_n
        if n is None:
            return float(norms[0])
        full_norms = column_norms(self.column, n)[:steps]
        # The factor bounds the error of scaling the columns in float32.
        return float(np.max(norms / full_norms)) * (1 + 2.0**-21)

    def noising_matrix(self, steps: int) -> Any:
        column = self.column.astype(np.float32)
        return toeplitz.inverse_as_streaming_matrix(column, self.column_normalize_for_n)

    def mean_error(self, steps: int) -> float:
        if self.column_normalize_for_n is None:
            return float(np.mean(toeplitz.per_query_error(strategy_coef=self.column, n=steps)))
        # Column j of A C^-1 is the cumulative sum of the scaled column j of the Toeplitz inverse.
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

    recorded_name: ClassVar[str] = "Buffered"
    amplified: ClassVar[bool] = False
    buf_decay: tuple[float, ...]
    output_scale: tuple[float, ...]

    @classmethod
    def of(cls, blt: BufferedToeplitz) -> "BufferedNoise":
        decay, scale = in_float32(blt).as_floats()
        return cls(tuple(decay.tolist()), tuple(scale.tolist()))

    @property
    def blt(self) -> BufferedToeplitz:
        return BufferedToeplitz.build(self.buf_decay, self.output_scale)

    def first_column(self, steps: int) -> np.ndarray:
        return self.blt.toeplitz_coefs(steps)

    def sensitivity(self, steps: int, participation: Participation) -> float:
        coefs: Any = self.first_column(steps)
        min_sep, most = participation.min_separation, participation.max_participations
        squared = toeplitz.minsep_sensitivity_squared(
            coefs, min_sep, n=steps, max_participations=most
        )
        return math.sqrt(squared)

    def noising_matrix(self, steps: int) -> Any:
        return self.blt.inverse_as_streaming_matrix()

    def mean_error(self, steps: int) -> float:
        return float(mean_error(self.blt.inverse(), steps))

    def row_norms(self, steps: int) -> np.ndarray | None:
        return np.sqrt(np.cumsum(self.blt.inverse().toeplitz_coefs(steps) ** 2))

    def __str__(self) -> str:
        count = len(self.buf_decay)
        return f"correlated over all steps: C is a BLT with {count} buffer{'s' * (count != 1)}"
