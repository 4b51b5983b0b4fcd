"""Examples that belong to several owners (a message to its sender and its receivers)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bevel.batch_selection.randomness import RngType, SamplingPurpose, seed_of, stream
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True, eq=False)
class MultiOwnerGraph:
    """Which owners each example has. Owners are numbered 0, 1, ... in the order of their ids.

    The unit of privacy is the owner, and the graph is taken to be public: neighbouring data sets
    differ in what the examples of one owner hold, not in whose they are (fixed-graph privacy,
    Ganesh et al. 2025, arXiv:2503.03622). Who owns what is *not* protected.
    """

    owner_ids: np.ndarray  # of the owners, sorted
    owners: np.ndarray  # of the first example, then of the second, ...
    bounds: np.ndarray  # example i has owners[bounds[i]:bounds[i + 1]]

    @classmethod
    def from_edges(
        cls, examples: np.ndarray, owner_ids: np.ndarray, num_examples: int
    ) -> "MultiOwnerGraph":
        """From pairs (example, owner). Repeated pairs count once."""
        examples, owner_ids = np.asarray(examples), np.asarray(owner_ids)
        if examples.ndim != 1 or examples.shape != owner_ids.shape:
            raise FixArgumentsError(
                f"examples has shape {examples.shape} and owner_ids {owner_ids.shape}: give two "
                "arrays of one length, a pair for each owner of each example."
            )
        size = whole_number("num_examples", num_examples, 0)
        if examples.size and (examples.min() < 0 or examples.max() >= size):
            raise FixArgumentsError(f"examples has an index outside 0 to {size - 1}.")
        names, owners = np.unique(owner_ids, return_inverse=True)
        if examples.size:
            examples, owners = np.unique(np.stack([examples, owners]), axis=1)
        counts = np.bincount(examples.astype(np.int64), minlength=size)
        if not counts.all():
            raise FixArgumentsError(
                f"example {int(np.argmin(counts))} has no owner, so no unit of privacy would "
                "protect it: give it an owner of its own, or leave it out."
            )
        return cls(names, owners, np.cumsum([0, *counts]))

    @classmethod
    def from_lists(cls, owners: Sequence[Sequence[int]]) -> "MultiOwnerGraph":
        """From the owners of each example."""
        examples = np.repeat(np.arange(len(owners)), [len(names) for names in owners])
        flat = np.asarray([name for names in owners for name in names], dtype=np.int64)
        return cls.from_edges(examples, flat, len(owners))

    @property
    def num_examples(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_owners(self) -> int:
        return len(self.owner_ids)

    def owners_of(self, example: int) -> np.ndarray:
        return self.owners[self.bounds[example] : self.bounds[example + 1]]


def greedy_contribution_bound(
    graph: MultiOwnerGraph, max_examples_per_owner: int, rng: RngType = None
) -> np.ndarray:
    """Examples, sorted, of which no owner has more than `max_examples_per_owner`.

    Goes through the examples in random order and takes each one whose owners all have room. The
    result is maximal: none of the others could be added. (The largest such set is hard to find.)
    """
    limit = whole_number("max_examples_per_owner", max_examples_per_owner, 1)
    order = stream(seed_of(rng), SamplingPurpose.ORDER).permutation(graph.num_examples)
    room = np.full(graph.num_owners, limit)
    taken = []
    for example in order.tolist():
        owners = graph.owners_of(example)
        if room[owners].all():
            room[owners] -= 1
            taken.append(example)
    return np.sort(np.asarray(taken, np.int64))
