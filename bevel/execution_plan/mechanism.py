"""Batches and noise, and the one event that belongs to both."""

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
    """All that an event depends on. The event is made from it, and from nothing else.

    Attributes:
      sampler: selects units.
      num_units: how many there are, where that is known.
      neighboring_relation: its name.
      noise_multiplier: standard deviation of z over the bound of one record and the sensitivity of
        C; None for no noise at all.
      strategy: C.
    """

    sampler: Any
    num_units: int | None
    neighboring_relation: str
    noise_multiplier: float | None
    strategy: NoiseMatrix = dataclasses.field(default_factory=IndependentNoise)

    @property
    def iterations(self) -> int:
        return self.sampler.iterations

    @property
    def relation(self) -> NeighboringRelation:
        return relation_of(self.neighboring_relation)

    def claim(self) -> ProvenEvent:
        """What is proven for the sampler, with this noise."""
        if self.strategy.amplified:
            bands = num_bands(self.strategy.matrix(self.iterations))
            return self.sampler.proven_event(self.num_units or 1, bands)
        return self.sampler.unamplified_event()

    def event_after(self, steps: int) -> DpEvent:
        """The event of the first `steps` steps: of all that they release."""
        if self.noise_multiplier is None:
            return NonPrivateDpEvent()
        steps = min(whole_number("steps", steps), self.iterations)
        if isinstance(self.sampler, RandomAllocationSampling):
            steps = self.iterations  # its first steps are no random allocation
        sampler = dataclasses.replace(self.sampler, iterations=steps)
        # A matrix that is cut off has shorter columns: beside them there is more noise.
        longer = self.sensitivity(self.iterations) / self.sensitivity(steps)
        noise = self.noise_multiplier * longer
        if self.strategy.amplified:
            return event_of(
                sampler,
                noise,
                num_examples=self.num_units or 1,
                neighboring_relation=self.relation,
                strategy=self.strategy.matrix(steps),
            )
        return unamplified_event_of(sampler, noise, neighboring_relation=self.relation)

    def sensitivity(self, steps: int) -> float:
        """Of C, over `steps` steps: what the noise multiplier is relative to, for a bound of 1."""
        participation = Participation(1, 1)
        if not self.strategy.amplified:
            participation = dataclasses.replace(self.sampler, iterations=steps).participation()
        return self.strategy.sensitivity(steps, participation)

    def rmse(self, stddev: float) -> float:
        """Root mean square, over steps, of the noise in the sum of all gradients so far.

        `stddev` is that of z for a sensitivity of C of 1: noise multiplier times bound.
        """
        error = self.strategy.mean_error(self.iterations)
        return stddev * self.sensitivity(self.iterations) * math.sqrt(error)

    @functools.cached_property
    def composes_by_step(self) -> bool:
        """Whether the event of steps 0 to t is that of 0 to s composed with that of s to t."""
        two = min(2, self.iterations)
        return self.event_after(two) == composed(self.event_after(1), two)

    @functools.cached_property
    def bounded_by_sampling(self) -> bool:
        return isinstance(self.event_after(1), MixtureDpEvent)

    def end_of_round(self, steps: int) -> int:
        """Where a charge for `steps` steps had best end: a round costs as much as one of its steps.

        All of the run, if it is bounded by sampling: to bound its parts would take as long.
        """
        if self.bounded_by_sampling:
            return self.iterations
        if not self.strategy.amplified or self.composes_by_step:
            return steps
        separation = self.sampler.participation().min_separation
        whole_rounds = math.ceil(steps / separation) * separation
        return min(whole_rounds, self.iterations)
