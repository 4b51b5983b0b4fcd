"""Balls-in-bins sampling: each example is assigned once to a random step of the cycle."""

import dataclasses
import math

import numpy as np

from bevel.batch_selection.groups import RandomGroup, independent_group
from bevel.batch_selection.proven_event import ABSENCE, ALL_RELATIONS, Participation, ProvenEvent
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.checks import whole_number


@dataclasses.dataclass(frozen=True)
class BallsInBinsSampling(RandomAccessSampler):
    """Each example joins steps b, b + cycle_length, b + 2 cycle_length, ... for a random bin b.

    Every example is in exactly one batch of each cycle. This is as practical as shuffling, and
    amplifies privacy nearly as much as Poisson sampling. Batch sizes are binomial with mean
    num_examples / cycle_length.

    Cost: drawing a batch takes time and memory proportional to the batch size, and a little more
    for the logarithm of `cycle_length`. Nothing is drawn at the start.

    Proven under add-or-remove and replace-special, for noise with any correlation. The privacy loss
    has no closed form, so `bevel.accounting` bounds it by Monte Carlo (docs/accounting.md).
    """

    iterations: int
    cycle_length: int

    def __post_init__(self) -> None:
        whole_number("iterations", self.iterations, 1)
        whole_number("cycle_length", self.cycle_length, 1)

    def _bin(self, step: int, num_examples: int, seed: int) -> RandomGroup:
        return independent_group(num_examples, self.cycle_length, step % self.cycle_length, seed)

    def _size(self, step: int, num_examples: int, seed: int) -> int:
        return self._bin(step, num_examples, seed).size

    def _at_rows(self, step: int, num_examples: int, seed: int, rows: np.ndarray) -> np.ndarray:
        return self._bin(step, num_examples, seed).members(rows)

    def participation(self) -> Participation:
        return Participation(self.cycle_length, math.ceil(self.iterations / self.cycle_length))

    def selection_relations(self) -> tuple[str, ...]:
        return ALL_RELATIONS

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        """The `balls_in_bins_event`, which takes the strategy matrix and allows any `num_bands`."""
        whole_number("num_bands", num_bands, 1)
        arguments = {"iterations": self.iterations, "cycle_length": self.cycle_length}
        return ProvenEvent("balls_in_bins_event", arguments, ABSENCE, takes_strategy=True)
