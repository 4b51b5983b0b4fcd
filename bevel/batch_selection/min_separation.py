"""Poisson sampling with a minimum separation between two uses of an example."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from bevel.batch_selection.binomial import binomial
from bevel.batch_selection.grouped_examples import grouped
from bevel.batch_selection.permutation import KeyedPermutation
from bevel.batch_selection.proven_event import ALL_RELATIONS, SAME_SIZE, Participation, ProvenEvent
from bevel.batch_selection.randomness import (
    RngType,
    SamplingPurpose,
    derived_key,
    fixed_seed,
    seed_of,
    uniforms,
)
from bevel.batch_selection.sampler import StatefulSampler, checked_step
from bevel.batch_selection.siphash import siphash
from bevel.checks import flag, instance, integers, probability, whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True, eq=False)
class MinSepState:
    """What the next batch depends on, besides the seed. Save it to resume a run.

    `resting` holds the batches of the last `min_sep - 1` steps, oldest first, so its size does not
    grow with the number of steps or examples. It reveals who was sampled: store it with the seed,
    never in a checkpoint that leaves the trainer.
    """

    step: int
    resting: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        whole_number("step", self.step, 0)
        for batch in instance("resting", self.resting, tuple, "a tuple of earlier batches"):
            if integers("a batch in resting", batch).dtype != np.int64:
                raise FixArgumentsError(f"a batch in resting has dtype {batch.dtype}: pass int64.")

    @functools.cached_property
    def _sorted(self) -> np.ndarray:
        """All resting examples in order."""
        return np.sort(np.concatenate([np.empty(0, np.int64), *self.resting]))

    def are_resting(self, examples: np.ndarray) -> np.ndarray:
        found = np.searchsorted(self._sorted, examples)
        return np.append(self._sorted, -1)[found] == examples

    def after(self, batch: np.ndarray, slots: int) -> "MinSepState":
        """Returns the next state: `batch` starts to rest, for `slots` steps."""
        if not slots:
            return MinSepState(self.step + 1, ())
        rested = self.resting[: max(0, len(self.resting) + 1 - slots)]
        kept = np.delete(
            self._sorted, np.searchsorted(self._sorted, np.concatenate([batch[:0], *rested]))
        )
        # Checking all batches, and sorting their examples, again at each step would take most of
        # the time.
        new = np.sort(batch)
        state = object.__new__(MinSepState)
        vars(state).update(
            step=self.step + 1,
            resting=(*self.resting, batch)[-slots:],
            _sorted=np.insert(kept, np.searchsorted(kept, new), new),
        )
        return state


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
    `next_batch` carry a state from step to step, with the batches of the last `min_sep - 1` steps;
    `batch` replays the earlier steps. A step takes time proportional to the size of the state, and
    every process draws the whole batch.

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
        flag("warm_start", self.warm_start)
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
        numbers = uniforms(seed, SamplingPurpose.WARM_START)
        count = binomial(size, 1 - self.first_free_steps()[0], numbers)
        order = KeyedPermutation(size, derived_key(seed, SamplingPurpose.WARM_START))
        hashes = siphash(np.arange(count), derived_key(seed, SamplingPurpose.WARM_START, 1))
        members, by_slot = order(np.arange(count)), grouped(hashes % np.uint64(slots), slots)
        return MinSepState(0, tuple(members[by_slot.of(slot)] for slot in range(slots)))

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
        instance("state", state, MinSepState, "the state that initial_state or next_batch returned")
        seed, step = fixed_seed(rng), checked_step(state.step, self.iterations)
        size = whole_number("num_examples", num_examples, 0)
        count = binomial(size, self.sampling_prob, uniforms(seed, SamplingPurpose.SIZE, step))
        # Sample from all examples, then remove the resting ones. Each remaining example joins
        # independently with probability `sampling_prob`, without a pass over the data set.
        order = KeyedPermutation(size, derived_key(seed, SamplingPurpose.MEMBERS, step))
        sampled = order(np.arange(count))
        batch = sampled[~state.are_resting(sampled)]
        # The order is random, so the first examples are a random subset.
        batch = batch[: self.truncated_batch_size]
        return batch, state.after(batch, self.min_sep - 1)

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
