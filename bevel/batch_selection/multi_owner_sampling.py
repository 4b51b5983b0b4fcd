"""Batches in which no owner appears twice, nor again before a minimum separation."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

from bevel.batch_selection.multi_owner import MultiOwnerGraph
from bevel.batch_selection.proven_event import SAME_SIZE, Participation, ProvenEvent
from bevel.batch_selection.randomness import RngType, SamplingPurpose, fixed_seed, seed_of, stream
from bevel.batch_selection.sampler import BatchSelectionStrategy, checked_step, share
from bevel.checks import whole_number

# Far enough in the past to be no separation from any step.
NEVER = np.iinfo(np.int64).min // 2


@dataclasses.dataclass(frozen=True, eq=False)
class MultiOwnerState:
    """All that the next batch depends on, beside the seed: two numbers per owner, and a place."""

    step: int
    round: int  # how often the examples were gone through
    position: int  # of the next example to consider in the order of this round
    last_used: np.ndarray  # step at which each owner was last in a batch
    uses: np.ndarray  # how often each owner was in a batch


@dataclasses.dataclass(frozen=True)
class MultiOwnerMinSepSampling(BatchSelectionStrategy):
    """Up to `batch_size` examples a step, each owner in at most one of them, then at rest.

    Between two batches with examples of one owner there are at least `min_sep` steps, and there
    are at most `max_participations` such batches for each owner. Examples are gone through in a
    random order, a fresh one each round, and those with an owner at rest are passed over until the
    next round. A batch is smaller, or empty, when no example is left whose owners all may appear.

    Takes a `MultiOwnerGraph` in place of a count. Step k depends on the steps before it:
    `initial_state` and `next_batch` carry a small state; `batch` replays the steps before.

    Proven under the replace relations with an owner as unit, the graph being fixed, as Gaussian
    mechanisms without amplification, one for each use.
    """

    batch_size: int
    iterations: int
    min_sep: int = 1
    max_participations: int | None = None

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size, 1)
        whole_number("iterations", self.iterations, 1)
        whole_number("min_sep", self.min_sep, 1)
        if self.max_participations is not None:
            whole_number("max_participations", self.max_participations, 1)

    def initial_state(self, graph: MultiOwnerGraph) -> MultiOwnerState:
        """The state before step 0."""
        never = np.full(graph.num_owners, NEVER)
        return MultiOwnerState(0, 0, 0, never, np.zeros_like(never))

    def next_batch(
        self, state: MultiOwnerState, graph: MultiOwnerGraph, rng: int
    ) -> tuple[np.ndarray, MultiOwnerState]:
        """The batch of step `state.step`, and the state after it."""
        seed, step = fixed_seed(rng), checked_step(state.step, self.iterations)
        limit = self.participation().max_participations
        free = (state.last_used <= step - self.min_sep) & (state.uses < limit)
        last_used, uses = state.last_used.copy(), state.uses.copy()
        taken: list[int] = []
        round_, position = state.round, state.position
        order = _order_of_round(graph.num_examples, seed, round_)
        for _ in range(2 * graph.num_examples - position):  # to the end of the next round
            if position == graph.num_examples:
                round_, position = round_ + 1, 0
                order = _order_of_round(graph.num_examples, seed, round_)
            owners = graph.owners_of(order[position])
            if free[owners].all():
                taken.append(int(order[position]))
                free[owners] = False
                last_used[owners] = step
                uses[owners] += 1
            position += 1
            if len(taken) == self.batch_size:
                break
        after = MultiOwnerState(step + 1, round_, position, last_used, uses)
        return np.sort(np.asarray(taken, np.int64)), after

    def batch_iterator(  # type: ignore[override]
        self, graph: MultiOwnerGraph, rng: RngType = None
    ) -> Iterator[np.ndarray]:
        return self._from(self.initial_state(graph), graph, seed_of(rng))

    def _from(
        self, state: MultiOwnerState, graph: MultiOwnerGraph, seed: int
    ) -> Iterator[np.ndarray]:
        while state.step < self.iterations:
            batch, state = self.next_batch(state, graph, seed)
            yield batch

    def batch(
        self,
        step: int,
        graph: MultiOwnerGraph,
        rng: int,
        *,
        process_index: int = 0,
        process_count: int = 1,
    ) -> np.ndarray:
        """The indices of step `step`, by replaying the steps before it."""
        replayed = self.batch_iterator(graph, fixed_seed(rng))
        batch = next(itertools.islice(replayed, checked_step(step, self.iterations), None))
        return batch[slice(*share(len(batch), process_index, process_count))]

    def participation(self) -> Participation:
        """How often one owner can take part."""
        possible = math.ceil(self.iterations / self.min_sep)
        return Participation(self.min_sep, min(possible, self.max_participations or possible))

    def selection_relations(self) -> tuple[str, ...]:
        return SAME_SIZE

    def proven_event(self, num_owners: int, num_bands: int = 1) -> ProvenEvent:
        self.check_bands(num_bands)
        uses = self.participation().max_participations
        return ProvenEvent("gaussian_event", {"participations": uses}, self.selection_relations())


@functools.lru_cache(maxsize=2)
def _order_of_round(num_examples: int, seed: int, round_: int) -> np.ndarray:
    """The order in which a round goes through the examples."""
    return stream(seed, SamplingPurpose.ORDER, round_).permutation(num_examples)
