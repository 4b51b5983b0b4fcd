"""Events that dp-accounting has no accountant for: they are bounded by sampling.

Both are mixtures of Gaussians against one Gaussian (docs/accounting.md has the proof): an example
that takes part at random steps shifts the outputs of the run by one of many vectors.
"""

import attr
import dp_accounting
import numpy as np


@attr.s(frozen=True, slots=True, auto_attribs=True)
class BallsInBinsDpEvent(dp_accounting.DpEvent):
    """Each example at one random step of a cycle, the same in every cycle; noise C^-1 z.

    Attributes:
      noise_multiplier: standard deviation of z, over the bound of one example's contribution and
        the largest column norm of C.
      iterations: steps.
      cycle_length: steps of a cycle.
      strategy: C, as the first column of a Toeplitz matrix (zeros at its end may be left out), or
        as its rows. Lower triangular; only the sizes of its entries count.
    """

    noise_multiplier: float
    iterations: int
    cycle_length: int
    strategy: tuple[float, ...] | tuple[tuple[float, ...], ...] = (1.0,)

    def shifts(self) -> np.ndarray:
        """(bins, iterations): what an example in each bin adds to each output, at most.

        In units of its bound times the largest column norm of C.
        """
        matrix = np.abs(np.asarray(self.strategy, float))
        used = (
            np.arange(self.iterations) % self.cycle_length == np.arange(self.cycle_length)[:, None]
        )
        if matrix.ndim == 1:
            column = matrix[: self.iterations]
            added = [np.convolve(steps, column)[: self.iterations] for steps in used.astype(float)]
            return np.asarray(added) / np.linalg.norm(column)
        return used.astype(float) @ matrix.T / np.max(np.linalg.norm(matrix, axis=0))


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(dp_accounting.DpEvent):
    """Each example at exactly `total_participations` random steps; independent noise."""

    noise_multiplier: float
    iterations: int
    total_participations: int


MixtureDpEvent = BallsInBinsDpEvent | RandomAllocationDpEvent
