"""How the noise of a plan is correlated over steps: C, for noise C^-1 z."""

import dataclasses
from typing import Any, Protocol

import numpy as np

from bevel.batch_selection import Participation


class Strategy(Protocol):
    """C: its sensitivity, its inverse as a stream, and the error of what it adds."""

    amplified: bool  # whether the chance in the batches counts

    def matrix(self, steps: int) -> np.ndarray:
        """C for so many steps, as events take it: its first column if it is Toeplitz."""

    def sensitivity(self, steps: int, participation: Participation) -> float:
        """What the noise multiplier is relative to, times the bound of one record."""

    def noising_matrix(self, steps: int) -> Any:
        """C^-1 as a stream; None for the identity."""

    def prefix_errors(self, steps: int) -> np.ndarray:
        """Variances of the prefix sums of C^-1 z, for z of variance 1."""

    def row_norms(self, steps: int) -> np.ndarray | None:
        """Norms of the rows of C^-1; None where all are 1."""


@dataclasses.dataclass(frozen=True)
class Independent:
    """Fresh noise at every step: DP-SGD."""

    amplified = True

    def matrix(self, steps: int) -> np.ndarray:
        del steps
        return np.ones(1)

    def sensitivity(self, steps: int, participation: Participation) -> float:
        del steps, participation
        return 1.0

    def noising_matrix(self, steps: int) -> Any:
        del steps

    def prefix_errors(self, steps: int) -> np.ndarray:
        return np.arange(1.0, steps + 1)

    def row_norms(self, steps: int) -> np.ndarray | None:
        del steps
