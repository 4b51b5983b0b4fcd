"""Events that no accountant of dp-accounting supports. bevel bounds them by Monte Carlo.

An example that takes part in random steps shifts the outputs of the run by one of many vectors, so
the privacy loss is that of a mixture of Gaussians against one Gaussian. docs/accounting.md has the
proof.
"""

import attr
import dp_accounting
import numpy as np

from bevel.accounting.arguments import checked_noise
from bevel.checks import instance, reals, whole_number
from bevel.errors import FixArgumentsError


@attr.s(frozen=True, slots=True, auto_attribs=True)
class BallsInBinsDpEvent(dp_accounting.DpEvent):
    """Each example takes part in one random step of a cycle, the same in every cycle; noise C^-1 z.

    Attributes:
      noise_multiplier: standard deviation of z, divided by the bound on one example's contribution
        and by the largest column norm of C.
      iterations: number of steps.
      cycle_length: number of steps in a cycle.
      strategy: C, as the first column of a Toeplitz matrix (trailing zeros may be left out), or as
        its rows. It is lower triangular. Only the absolute values of its entries matter.
    """

    noise_multiplier: float
    iterations: int
    cycle_length: int
    strategy: tuple[float, ...] | tuple[tuple[float, ...], ...] = (1.0,)

    def __attrs_post_init__(self) -> None:
        checked_noise(self.noise_multiplier)
        whole_number("iterations", self.iterations)
        whole_number("cycle_length", self.cycle_length)
        instance("strategy", self.strategy, tuple, "a tuple of coefficients, or of rows")
        if not reals("strategy", self.strategy, (1, 2)).any():
            raise FixArgumentsError("strategy is 0 everywhere: pass at least one nonzero entry.")

    def shifts(self) -> np.ndarray:
        """(bins, iterations): the most that an example in each bin adds to each output.

        The unit is the bound on its contribution times the largest column norm of C.
        """
        matrix = np.abs(np.asarray(self.strategy, float))
        in_bin = (
            np.arange(self.iterations) % self.cycle_length == np.arange(self.cycle_length)[:, None]
        )
        if matrix.ndim == 1:
            column = matrix[: self.iterations]
            rows = [np.convolve(steps, column)[: self.iterations] for steps in in_bin.astype(float)]
            return np.asarray(rows) / np.linalg.norm(column)
        return in_bin.astype(float) @ matrix.T / np.max(np.linalg.norm(matrix, axis=0))


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(dp_accounting.DpEvent):
    """Each example takes part in exactly `total_participations` random steps; independent noise."""

    noise_multiplier: float
    iterations: int
    total_participations: int

    def __attrs_post_init__(self) -> None:
        checked_noise(self.noise_multiplier)
        uses = whole_number("total_participations", self.total_participations)
        if uses > whole_number("iterations", self.iterations):
            raise FixArgumentsError(
                f"total_participations={uses} of {self.iterations} iterations: an example can join "
                f"each step at most once, so pass at most {self.iterations}."
            )


MixtureDpEvent = BallsInBinsDpEvent | RandomAllocationDpEvent
