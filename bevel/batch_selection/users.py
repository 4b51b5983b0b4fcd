"""User-level sampling: a base sampler selects users, and each contributes some examples."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from bevel.batch_selection.examples_by_user import ExamplesByUser
from bevel.batch_selection.padding import PADDING
from bevel.batch_selection.proven_event import Participation, ProvenEvent
from bevel.batch_selection.randomness import (
    RngType,
    SamplingPurpose,
    derived_key,
    fixed_seed,
    seed_of,
)
from bevel.batch_selection.sampler import BatchSelectionStrategy
from bevel.batch_selection.siphash import chunks, siphash
from bevel.checks import flag, instance, whole_number


@dataclasses.dataclass(frozen=True)
class UserSelectionStrategy:
    """Runs a base sampler over users. A batch has shape (users, examples per user).

    A row holds `examples_per_user_per_batch` different examples of one user, padded with -1 if the
    user has fewer. With `shuffle_per_user=True` they are a random subset in random order, redrawn
    for each step and user. Otherwise they follow the order of the data set, wrapping around: the
    first ones in the first round, the next ones in the next. A round is a cycle of the base
    sampler, or one step if it has none. Clip with `keep_batch_dim=False`, so that a row is one
    contribution.

    The event is that of the base sampler with the user as the unit of privacy: its `num_examples`
    is the number of users.

    Cost: that of the base sampler, and about 0.1 microseconds for each example of a row; shuffled
    rows of k examples also take k**2 comparisons.
    """

    base_strategy: BatchSelectionStrategy
    examples_per_user_per_batch: int = 1
    shuffle_per_user: bool = False

    def __post_init__(self) -> None:
        hint = "one of the samplers in bevel.batch_selection"
        instance("base_strategy", self.base_strategy, BatchSelectionStrategy, hint)
        checked_row_length(self.examples_per_user_per_batch)
        flag("shuffle_per_user", self.shuffle_per_user)

    @property
    def iterations(self) -> int:
        return self.base_strategy.iterations  # type: ignore[attr-defined]

    def batch_iterator(self, user_ids: np.ndarray, rng: RngType = None) -> Iterator[np.ndarray]:
        """Yields one array per step. `user_ids` holds the id of each example's user."""
        users, seed = ExamplesByUser.of(user_ids), seed_of(rng)
        selected = self.base_strategy.batch_iterator(len(users), seed)
        return (self.examples_of(batch, step, users, seed) for step, batch in enumerate(selected))

    def batch(
        self, step: int, user_ids: "np.ndarray | ExamplesByUser", rng: int, **process: int
    ) -> np.ndarray:
        """Returns the rows of step `step`; `process` takes the base sampler's process arguments."""
        users, seed = ExamplesByUser.of(user_ids), fixed_seed(rng)
        base: Any = self.base_strategy
        return self.examples_of(base.batch(step, len(users), seed, **process), step, users, seed)

    def examples_of(
        self, selected: np.ndarray, step: int, users: ExamplesByUser, seed: int
    ) -> np.ndarray:
        """Returns the examples that the selected users contribute to a step, one row per user."""
        count = self.examples_per_user_per_batch
        owned = users.counts(selected)
        # The order of a user's examples is an array (count, users): columns are users.
        order = np.repeat(np.arange(count)[:, None], len(selected), axis=1)
        more = np.flatnonzero(owned > count)
        if self.shuffle_per_user:
            key = derived_key(seed, SamplingPurpose.WITHIN_USER, step)
            hashes = siphash(selected[more] * count + np.arange(count)[:, None], key)
            order[:, more] = random_orders(hashes, owned[more])
        else:
            # Not the number of earlier uses: step k would depend on all steps before it.
            start = step // self.participation().min_separation * count
            order[:, more] = (start + order[:, more]) % owned[more]
        examples = users.examples_at(selected, np.minimum(order, np.maximum(owned - 1, 0)).T)
        return np.where(owned[:, None] > order.T, examples, PADDING)

    def participation(self) -> Participation:
        """How often one user can take part."""
        return self.base_strategy.participation()

    def proven_event(self, num_users: int, num_bands: int = 1) -> ProvenEvent:
        """The event of the base sampler over `num_users` users, with the user as the unit."""
        return self.base_strategy.proven_event(num_users, num_bands)

    def unamplified_event(self) -> ProvenEvent:
        return self.base_strategy.unamplified_event()

    def selection_relations(self) -> tuple[str, ...]:
        return self.base_strategy.selection_relations()


def checked_row_length(examples_per_user_per_batch: int) -> int:
    """Checks the number of examples of one user in a batch, each of which has an index."""
    name, why = "examples_per_user_per_batch", "A batch holds an index for each of them."
    return whole_number(name, examples_per_user_per_batch, 1, 2**24, why)


def random_orders(hashes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns, in column c, the first elements of a random order of `range(sizes[c])`.

    The first steps of the Fisher-Yates shuffle, in all columns at once: step k swaps element k with
    a random one at or after it. `hashes`, (elements, columns), are random 64-bit numbers. No size
    is smaller than the number of elements.
    """
    elements = np.empty(hashes.shape, np.int64)
    for part in chunks(hashes.shape[1]):
        elements[:, part] = _fisher_yates(hashes[:, part], sizes[part])
    return elements


def _fisher_yates(hashes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    elements, places, moved = (np.empty(hashes.shape, np.int64) for _ in range(3))
    for k in range(len(hashes)):
        places[k] = k + (hashes[k] % (sizes - k).astype(np.uint64)).view(np.int64)
        elements[k], moved[k] = places[k], k  # `moved[k]` is the element that is put at `places[k]`
        for earlier in range(k):
            np.copyto(elements[k], moved[earlier], where=places[earlier] == places[k])
            np.copyto(moved[k], moved[earlier], where=places[earlier] == k)
    return elements
