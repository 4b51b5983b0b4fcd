"""Balls in bins: every example has one random place in a cycle, and keeps it."""

import dataclasses
import math

import numpy as np

from bevel.batch_selection.groups import independent_groups
from bevel.batch_selection.proven_event import ABSENCE, ALL_RELATIONS, Participation, ProvenEvent
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.checks import whole_number


@dataclasses.dataclass(frozen=True)
class BallsInBinsSampling(RandomAccessSampler):
    """Example i joins steps b, b + cycle_length, b + 2 cycle_length, ..., for one random b.

    Every example is in exactly one batch of each cycle: as practical as shuffling, and amplified
    nearly as much as Poisson sampling. Batch sizes are binomial with mean n / cycle_length.

    Cost: the bins take one index per example, drawn once; a batch is a part of that array.

    Proven under add-or-remove and replace-special, for noise of any correlation. The privacy loss
    has no closed form: `bevel.accounting` bounds it by sampling (docs/accounting.md).
    """

    iterations: int
    cycle_length: int

    def __post_init__(self) -> None:
        whole_number("iterations", self.iterations, 1)
        whole_number("cycle_length", self.cycle_length, 1)

    def _bin(self, step: int, num_examples: int, seed: int) -> np.ndarray:
        bins = independent_groups(num_examples, self.cycle_length, seed)
        return bins.of(step % self.cycle_length)

    def _size(self, step: int, num_examples: int, seed: int) -> int:
        return len(self._bin(step, num_examples, seed))

    def _rows(self, step: int, num_examples: int, seed: int, start: int, stop: int) -> np.ndarray:
        return self._bin(step, num_examples, seed)[start:stop]

    def participation(self) -> Participation:
        return Participation(self.cycle_length, math.ceil(self.iterations / self.cycle_length))

    def selection_relations(self) -> tuple[str, ...]:
        return ALL_RELATIONS

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        """`balls_in_bins_event`, which also takes the matrix: any number of bands is allowed."""
        whole_number("num_bands", num_bands, 1)
        arguments = {"iterations": self.iterations, "cycle_length": self.cycle_length}
        return ProvenEvent("balls_in_bins_event", arguments, ABSENCE, takes_strategy=True)
