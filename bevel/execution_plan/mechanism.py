"""The mechanism of a plan: a sampler and noise, and their event."""

import dataclasses
import functools
import math
from typing import Any

from dp_accounting import DpEvent, NeighboringRelation, NonPrivateDpEvent

from bevel.accounting import event_of, unamplified_event_of
from bevel.accounting.arguments import relation_of
from bevel.accounting.events import composed
from bevel.accounting.mixture_events import MixtureDpEvent
from bevel.accounting.sampler_event import num_bands
from bevel.batch_selection import Participation, ProvenEvent, RandomAllocationSampling
from bevel.checks import whole_number
from bevel.execution_plan.noise_matrices import IndependentNoise, NoiseMatrix


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """Everything that the event depends on.

    Attributes:
      sampler: selects the units of each batch.
      num_units: the number of units, or None if it is not known.
      neighboring_relation: the name of the relation.
      noise_multiplier: the standard deviation of z divided by the bound of one record and the
        sensitivity of C; None for no noise.
      noise_matrix: C, for noise C^-1 z.
    """

    sampler: Any
    num_units: int | None
    neighboring_relation: str
    noise_multiplier: float | None
    noise_matrix: NoiseMatrix = dataclasses.field(
        default_factory=IndependentNoise, metadata={"recorded_name": "strategy"}
    )

    @property
    def iterations(self) -> int:
        return self.sampler.iterations

    @property
    def relation(self) -> NeighboringRelation:
        return relation_of(self.neighboring_relation)

    def claim(self) -> ProvenEvent:
        """Returns what is proven for the sampler with this noise."""
        if self.noise_matrix.amplified:
            bands = num_bands(self.noise_matrix.first_column(self.iterations))
            return self.sampler.proven_event(self.num_units or 1, bands)
        return self.sampler.unamplified_event()

    def event_after(self, steps: int) -> DpEvent:
        """Returns the event of everything that the first `steps` steps release."""
        if self.noise_multiplier is None:
            return NonPrivateDpEvent()
        steps = min(whole_number("steps", steps), self.iterations)
        if isinstance(self.sampler, RandomAllocationSampling):
            steps = self.iterations  # its first steps alone are not a random allocation
        sampler = dataclasses.replace(self.sampler, iterations=steps)
        # C restricted to fewer steps is less sensitive: relative to it, the noise is larger.
        ratio = self.sensitivity(self.iterations) / self.sensitivity(steps)
        noise = self.noise_multiplier * ratio
        relation, units = self.relation, self.num_units or 1
        if self.noise_matrix.amplified:
            column = self.noise_matrix.first_column(steps)
            return event_of(
                sampler, noise, num_examples=units, neighboring_relation=relation, strategy=column
            )
        return unamplified_event_of(sampler, noise, neighboring_relation=relation)

    def sensitivity(self, steps: int) -> float:
        """Returns the sensitivity of C over `steps` steps, for a bound of 1."""
        participation = Participation(1, 1)
        if not self.noise_matrix.amplified:
            participation = dataclasses.replace(self.sampler, iterations=steps).participation()
        return self.noise_matrix.sensitivity(steps, participation)

    def rmse(self, stddev: float) -> float:
        """Returns the root mean square, over steps, of the noise in the sum of gradients so far.

        `stddev` is the noise multiplier times the bound of one record.
        """
        error = self.noise_matrix.mean_error(self.iterations)
        return stddev * self.sensitivity(self.iterations) * math.sqrt(error)

    @functools.cached_property
    def composes_by_step(self) -> bool:
        """Whether the event of steps 0 to t composes those of 0 to s and of s to t."""
        two = min(2, self.iterations)
        return self.event_after(two) == composed(self.event_after(1), two)

    @functools.cached_property
    def bounded_by_sampling(self) -> bool:
        """Whether the privacy loss is bounded by Monte Carlo sampling."""
        return isinstance(self.event_after(1), MixtureDpEvent)

    def end_of_round(self, steps: int) -> int:
        """Returns how many steps to charge for `steps`: a round costs as much as one step of it.

        If bounded by Monte Carlo, it is the whole run: bounding a part would take as long.
        """
        if self.bounded_by_sampling:
            return self.iterations
        if not self.noise_matrix.amplified or self.composes_by_step:
            return steps
        round_length = self.sampler.participation().min_separation
        return min(math.ceil(steps / round_length) * round_length, self.iterations)
