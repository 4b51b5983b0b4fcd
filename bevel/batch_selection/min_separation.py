"""Poisson sampling with a minimum separation between two uses of an example."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from bevel.batch_selection.proven_event import ALL_RELATIONS, SAME_SIZE, Participation, ProvenEvent
from bevel.batch_selection.randomness import RngType, SamplingPurpose, fixed_seed, seed_of, stream
from bevel.batch_selection.sampler import StatefulSampler, checked_step
from bevel.batch_selection.subset import subset_rows
from bevel.checks import probability, whole_number


@dataclasses.dataclass(frozen=True, eq=False)
class MinSepState:
    """What the next batch depends on, besides the seed. Save it to resume a run.

    `resting` holds the batches of the last `min_sep - 1` steps, oldest first, so its size does not
    grow with the number of steps or examples. It reveals who was sampled: store it with the seed,
    never in a checkpoint that leaves the trainer.
    """

    step: int
    resting: tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class BMinSepSampling(StatefulSampler):
    """Poisson sampling where an example rests for `min_sep - 1` steps after each use.

    At each step, every example that is not resting joins with probability `sampling_prob`. Two uses
    of an example are therefore at least `min_sep` steps apart. In the long run an example is used
    every `1 / sampling_prob + min_sep - 1` steps on average.

    | option                 | effect                                                            |
    | ---------------------- | ----------------------------------------------------------------- |
    | `warm_start=True`      | starts in the stationary state: equal expected size for all steps |
    | `warm_start=False`     | no example rests at the start, so the first batches are larger    |
    | `truncated_batch_size` | larger batches keep a random subset; dropped examples do not rest |

    Step k depends on the earlier steps, so there is no cheap random access. `initial_state` and
    `next_batch` carry a small state from step to step; `batch` replays the earlier steps.

    Proven under all relations (with truncation: the replace relations), as Gaussian mechanisms
    without amplification by sampling, one for each of at most `ceil(iterations / min_sep)` uses.
    """

    sampling_prob: float
    iterations: int
    min_sep: int
    warm_start: bool = True
    truncated_batch_size: int | None = None

    def __post_init__(self) -> None:
        probability("sampling_prob", self.sampling_prob)
        whole_number("iterations", self.iterations, 1)
        whole_number("min_sep", self.min_sep, 1)
        if self.truncated_batch_size is not None:
            whole_number("truncated_batch_size", self.truncated_batch_size, 1)

    def initial_state(self, num_examples: int, rng: int) -> MinSepState:
        """Returns the state before step 0."""
        seed, size = fixed_seed(rng), whole_number("num_examples", num_examples, 0)
        slots = self.min_sep - 1
        if not (self.warm_start and slots):
            return MinSepState(0, ())
        warm = stream(seed, SamplingPurpose.WARM_START)
        count = int(warm.binomial(size, 1 - self.first_free_steps()[0]))
        members = subset_rows(
            size, count, 0, count, lambda part: stream(seed, SamplingPurpose.WARM_START, part)
        )
        slot = warm.integers(slots, size=count)
        return MinSepState(0, tuple(members[slot == k] for k in range(slots)))

    def first_free_steps(self) -> np.ndarray:
        """The probabilities that an example does not rest from step 0, 1, 2, ... on."""
        slots = self.min_sep - 1
        if not (self.warm_start and slots):
            return np.ones(1)
        # In the stationary state an example is used at any given step with probability `rate`, so
        # it has been resting since each of the last `slots` steps with that probability.
        rate = self.sampling_prob / (1 + self.sampling_prob * slots)
        return np.array([max(0.0, 1 - rate * slots), *[rate] * slots])

    def next_batch(
        self, state: MinSepState, num_examples: int, rng: int
    ) -> tuple[np.ndarray, MinSepState]:
        """Returns the batch of step `state.step` and the next state."""
        seed, step = fixed_seed(rng), checked_step(state.step, self.iterations)
        sizes = stream(seed, SamplingPurpose.SIZE, step)
        count = int(
            sizes.binomial(whole_number("num_examples", num_examples, 0), self.sampling_prob)
        )
        # Sample from all examples, then remove the resting ones. Each remaining example joins
        # independently with probability `sampling_prob`, without a pass over the data set.
        part_stream = functools.partial(stream, seed, SamplingPurpose.MEMBERS, step)
        sampled = subset_rows(num_examples, count, 0, count, part_stream)
        batch = sampled[~np.isin(sampled, np.concatenate([sampled[:0], *state.resting]))]
        limit = self.truncated_batch_size
        if limit is not None and len(batch) > limit:
            batch = np.sort(sizes.choice(batch, limit, replace=False, shuffle=False))
        slots = self.min_sep - 1
        resting = (*state.resting, batch)[-slots:] if slots else ()
        return batch, MinSepState(step + 1, resting)

    def batch_iterator(self, num_examples: int, rng: RngType = None) -> Iterator[np.ndarray]:
        seed = seed_of(rng)
        return self._iterate_from(self.initial_state(num_examples, seed), num_examples, seed)

    def participation(self) -> Participation:
        return Participation(self.min_sep, math.ceil(self.iterations / self.min_sep))

    def selection_relations(self) -> tuple[str, ...]:
        return ALL_RELATIONS if self.truncated_batch_size is None else SAME_SIZE

    def proven_event(self, num_examples: int, num_bands: int = 1) -> ProvenEvent:
        self.check_bands(num_bands)
        uses = self.participation().max_participations
        return ProvenEvent("gaussian_event", {"participations": uses}, self.selection_relations())
