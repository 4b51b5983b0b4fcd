"""Random allocation: each example takes part in exactly k random steps."""

import dataclasses
import functools

import numpy as np

from bevel.batch_selection.grouped_examples import ExampleGroups, grouped, index_dtype
from bevel.batch_selection.groups import RandomGroup, independent_group
from bevel.batch_selection.proven_event import ABSENCE, ALL_RELATIONS, Participation, ProvenEvent
from bevel.batch_selection.randomness import SamplingPurpose, stream
from bevel.batch_selection.sampler import RandomAccessSampler
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True)
class RandomAllocationSampling(RandomAccessSampler):
    """Each example joins `total_participations` different steps, all such sets equally likely.

    With 0 participations, all batches are empty.

    Cost: with one participation, drawing a batch takes time and memory proportional to its size,
    and nothing is drawn at the start. With k > 1, the allocation of all examples is drawn once: it
    takes k indices and k**2 comparisons per example, and a batch is a slice of it.

    Proven under add-or-remove and replace-special, for independent noise. `bevel.accounting` bounds
    the privacy loss by Monte Carlo sampling.
    """

    total_participations: int
    iterations: int

    def __post_init__(self) -> None:
        whole_number("iterations", self.iterations, 1)
        if whole_number("total_participations", self.total_participations, 0) > self.iterations:
            raise FixArgumentsError(
                f"total_participations={self.total_participations}: an example joins each step at "
                f"most once, so pass at most iterations={self.iterations}."
            )

    def _once(self, step: int, num_examples: int, seed: int) -> RandomGroup:
        """The examples of a step if each takes part once: one of `iterations` groups."""
        return independent_group(num_examples, self.iterations, step, seed)

    def _allocated(self, step: int, num_examples: int, seed: int) -> np.ndarray:
        return _allocation(num_examples, self.total_participations, self.iterations, seed).of(step)

    def _size(self, step: int, num_examples: int, seed: int) -> int:
        if self.total_participations == 1:
            return self._once(step, num_examples, seed).size
        return len(self._allocated(step, num_examples, seed))

    def _at_rows(self, step: int, num_examples: int, seed: int, rows: np.ndarray) -> np.ndarray:
        if self.total_participations == 1:
            return self._once(step, num_examples, seed).members(rows)
        return self._allocated(step, num_examples, seed)[rows]

    def participation(self) -> Participation:
        return Participation(1, self.total_participations)

    def selection_relations(self) -> tuple[str, ...]:
        return ALL_RELATIONS

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        self.check_bands(num_bands)
        arguments = {
            "iterations": self.iterations,
            "total_participations": self.total_participations,
        }
        return ProvenEvent("random_allocation_event", arguments, ABSENCE)


@functools.lru_cache(maxsize=2)  # each entry holds `participations` indices per example
def _allocation(
    num_examples: int, participations: int, iterations: int, seed: int
) -> ExampleGroups:
    steps = random_subsets(
        num_examples, participations, iterations, stream(seed, SamplingPurpose.ALLOCATION)
    )
    pairs = grouped(steps.ravel(), iterations)  # numbered example * participations + use
    members = (pairs.members // max(1, participations)).astype(index_dtype(num_examples))
    return ExampleGroups(members, pairs.bounds)


def random_subsets(rows: int, count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws `count` different members of `range(size)` per row, all subsets equally likely.

    Floyd's algorithm on all rows at once: for j from size - count to size - 1, take a random member
    of range(j + 1), or j itself if that member was taken before.
    """
    chosen = np.empty((rows, count), index_dtype(size))
    for column, last in enumerate(range(size - count, size)):
        drawn = rng.integers(last + 1, size=rows, dtype=chosen.dtype)
        taken = np.any(chosen[:, :column] == drawn[:, None], axis=1)
        chosen[:, column] = np.where(taken, last, drawn)
    return chosen
