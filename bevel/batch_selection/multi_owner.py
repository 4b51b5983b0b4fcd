"""Examples with several owners, such as a message with a sender and receivers."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bevel.batch_selection.randomness import RngType, SamplingPurpose, seed_of, stream
from bevel.checks import ids, instance, integers, shown, whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True, eq=False)
class MultiOwnerGraph:
    """The owners of each example. Owners are numbered 0, 1, ... in the order of their ids.

    The unit of privacy is the owner, and the graph is public: neighbouring data sets differ in the
    contents of one owner's examples, not in who owns them (fixed-graph privacy, Ganesh et al. 2025,
    arXiv:2503.03622). Ownership itself is *not* protected.
    """

    owner_ids: np.ndarray  # the id of each owner, sorted
    owners: np.ndarray  # owner numbers of all examples, concatenated
    bounds: np.ndarray  # example i has owners[bounds[i]:bounds[i + 1]]

    def __post_init__(self) -> None:
        owners, bounds = integers("owners", self.owners), integers("bounds", self.bounds)
        object.__setattr__(self, "owner_ids", ids("owner_ids", self.owner_ids))
        object.__setattr__(self, "owners", owners)
        object.__setattr__(self, "bounds", bounds)
        if owners.size and not 0 <= owners.min() <= owners.max() < self.num_owners:
            raise FixArgumentsError(
                f"owners goes from {owners.min()} to {owners.max()}: pass positions in owner_ids, "
                f"from 0 to {self.num_owners - 1}."
            )
        ends = (bounds[0], bounds[-1]) if bounds.size else (0, -1)
        if ends != (0, len(owners)) or not np.all(bounds[1:] > bounds[:-1]):
            raise FixArgumentsError(
                f"bounds must increase from 0 to {len(owners)}, the number of entries in owners: "
                "each example needs an owner. Use from_edges or from_lists."
            )

    @classmethod
    def from_edges(
        cls, examples: np.ndarray, owner_ids: np.ndarray, num_examples: int
    ) -> "MultiOwnerGraph":
        """Builds the graph from (example, owner) pairs. Repeated pairs count once."""
        examples, owner_ids = integers("examples", examples), ids("owner_ids", owner_ids)
        if examples.shape != owner_ids.shape:
            raise FixArgumentsError(
                f"examples has shape {examples.shape} and owner_ids {owner_ids.shape}: pass two "
                "1-D arrays of the same length, one entry for each (example, owner) pair."
            )
        size = whole_number("num_examples", num_examples, 0)
        if examples.size and (examples.min() < 0 or examples.max() >= size):
            raise FixArgumentsError(
                f"examples has other indices: pass 0 to {size - 1}, or a larger num_examples."
            )
        known, owners = np.unique(owner_ids, return_inverse=True)
        if examples.size:
            examples, owners = np.unique(np.stack([examples, owners]), axis=1)
        # More examples than pairs are not counted: their number may be too large for an array.
        counts = np.bincount(examples.astype(np.int64), minlength=min(size, examples.size + 1))
        if not counts.all():
            raise FixArgumentsError(
                f"example {int(np.argmin(counts))} has no owner, so nothing protects it: "
                "give it a separate owner, or leave it out."
            )
        return cls(known, owners, np.cumsum([0, *counts]))

    @classmethod
    def from_lists(cls, owners: Sequence[Sequence[int]]) -> "MultiOwnerGraph":
        """Builds the graph from a list of owner ids for each example."""
        try:
            lists = [list(of_one) for of_one in owners]
            flat = [
                whole_number("an owner id", owner, -(2**63), 2**63 - 1)
                for owner in itertools.chain(*lists)
            ]
        except TypeError:
            raise FixArgumentsError(
                f"owners={shown(owners)}: pass a list with a list of owner ids for each example."
            ) from None
        examples = np.repeat(np.arange(len(lists)), [len(of_one) for of_one in lists])
        return cls.from_edges(examples, np.asarray(flat, np.int64), len(lists))

    @property
    def num_examples(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_owners(self) -> int:
        return len(self.owner_ids)

    def owners_of(self, example: int) -> np.ndarray:
        return self.owners[self.bounds[example] : self.bounds[example + 1]]

    def all_owners(self, condition: np.ndarray, examples: np.ndarray) -> np.ndarray:
        """Whether all owners of each example meet a condition, which has one entry per owner."""
        counts = self.bounds[examples + 1] - self.bounds[examples]
        ends = np.cumsum(counts)
        places = np.arange(counts.sum()) + np.repeat(self.bounds[examples + 1] - ends, counts)
        return np.logical_and.reduceat(condition[self.owners[places]], ends - counts)

    def any_example(self, condition: np.ndarray) -> bool:
        """Whether all owners of any example meet a condition, which has one entry per owner."""
        return bool(np.logical_and.reduceat(condition[self.owners], self.bounds[:-1]).any())


def greedy_contribution_bound(
    graph: MultiOwnerGraph, max_examples_per_owner: int, rng: RngType = None
) -> np.ndarray:
    """Selects examples such that no owner has more than `max_examples_per_owner` of them.

    Visits the examples in random order and selects each one whose owners are all below the limit.
    No further example could be added to the result, but it need not be the largest such set, which
    is hard to find. Returns sorted indices.
    """
    instance("graph", graph, MultiOwnerGraph, "a MultiOwnerGraph")
    limit = whole_number("max_examples_per_owner", max_examples_per_owner, 1)
    order = stream(seed_of(rng), SamplingPurpose.ORDER).permutation(graph.num_examples)
    remaining = np.full(graph.num_owners, limit)
    selected = []
    for example in order.tolist():
        owners = graph.owners_of(example)
        if remaining[owners].all():
            remaining[owners] -= 1
            selected.append(example)
    return np.sort(np.asarray(selected, np.int64))
