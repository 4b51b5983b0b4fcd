"""Batches with at most one example per owner, and a minimum separation between its uses."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from bevel.batch_selection.multi_owner import MultiOwnerGraph
from bevel.batch_selection.permutation import KeyedPermutation
from bevel.batch_selection.proven_event import SAME_SIZE, Participation, ProvenEvent
from bevel.batch_selection.randomness import (
    RngType,
    SamplingPurpose,
    derived_key,
    fixed_seed,
    seed_of,
)
from bevel.batch_selection.sampler import StatefulSampler, checked_step
from bevel.checks import instance, integers, whole_number
from bevel.errors import FixArgumentsError

# A step so far in the past that it is min_sep away from every step.
NEVER = np.iinfo(np.int64).min // 2
# Examples whose owners are looked up together.
_CHUNK = 4096
# Once this part of the examples was visited, it pays to look whether any of them can be selected.
_LOOK = 64


@dataclasses.dataclass(frozen=True, eq=False)
class MultiOwnerState:
    """What the next batch depends on, besides the seed. It reveals who was sampled."""

    step: int
    round: int  # completed passes over the examples
    position: int  # of the next example to consider, in the order of this round
    last_used: np.ndarray  # step at which each owner was last in a batch
    uses: np.ndarray  # number of batches that each owner has been in

    def __post_init__(self) -> None:
        for name in ("step", "round", "position"):
            whole_number(name, getattr(self, name), 0)
        used, uses = integers("last_used", self.last_used), integers("uses", self.uses)
        object.__setattr__(self, "last_used", used)
        object.__setattr__(self, "uses", uses)
        if used.shape != uses.shape or (uses.size and uses.min() < 0):
            raise FixArgumentsError(
                f"last_used has shape {used.shape} and uses {uses.shape}: pass one number for each "
                "owner, and no negative number of uses."
            )


@dataclasses.dataclass(frozen=True)
class MultiOwnerMinSepSampling(StatefulSampler):
    """Selects up to `batch_size` examples per step, with at most one example per owner.

    Two batches with examples of the same owner are at least `min_sep` steps apart, and each owner
    is in at most `max_participations` batches. The sampler visits the examples in a random order
    that changes each round, and skips those with a resting owner until the next round. A batch is
    smaller, or empty, when the owners of all other examples are resting or used up.

    The methods take a `MultiOwnerGraph` instead of `num_examples`. Step k depends on the earlier
    steps: `initial_state` and `next_batch` carry a small state; `batch` replays the earlier steps.

    Proven under the replace relations, with the owner as the unit and a fixed graph, as Gaussian
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
        """Returns the state before step 0."""
        instance("graph", graph, MultiOwnerGraph, "a MultiOwnerGraph")
        never = np.full(graph.num_owners, NEVER)
        return MultiOwnerState(0, 0, 0, never, np.zeros_like(never))

    def next_batch(
        self, state: MultiOwnerState, graph: MultiOwnerGraph, rng: int
    ) -> tuple[np.ndarray, MultiOwnerState]:
        """Returns the batch of step `state.step` and the next state."""
        seed, step = fixed_seed(rng), checked_step(state.step, self.iterations)
        limit = self.participation().max_participations
        available = (state.last_used <= step - self.min_sep) & (state.uses < limit)
        last_used, uses = state.last_used.copy(), state.uses.copy()
        selected: list[int] = []
        round_, position = state.round, state.position
        left = 2 * graph.num_examples - position  # to the end of the next round
        visited, next_look = 0, graph.num_examples // _LOOK
        while left > 0 and len(selected) < self.batch_size:
            if visited >= next_look:
                if not graph.any_example(available):
                    break  # visiting the others would select none of them
                next_look = 2 * max(visited, _CHUNK)
            if position == graph.num_examples:
                round_, position = round_ + 1, 0
            key = derived_key(seed, SamplingPurpose.ORDER, round_)
            stop = min(position + _CHUNK, position + left, graph.num_examples)
            examples = KeyedPermutation(graph.num_examples, key)(np.arange(position, stop))
            passed = stop - position
            # Most examples are skipped here, and the loop decides about the others in order.
            for place in np.flatnonzero(graph.all_owners(available, examples)).tolist():
                owners = graph.owners_of(examples[place])
                if available[owners].all():
                    selected.append(int(examples[place]))
                    available[owners] = False
                    last_used[owners] = step
                    uses[owners] += 1
                if len(selected) == self.batch_size:
                    passed = place + 1
                    break
            position, left, visited = position + passed, left - passed, visited + passed
        next_state = MultiOwnerState(step + 1, round_, position, last_used, uses)
        return np.sort(np.asarray(selected, np.int64)), next_state

    def batch_iterator(  # type: ignore[override]
        self, graph: MultiOwnerGraph, rng: RngType = None
    ) -> Iterator[np.ndarray]:
        return self._iterate_from(self.initial_state(graph), graph, seed_of(rng))

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
