"""User-level sampling: a base sampler selects users, and each contributes some examples."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from bevel.batch_selection.groups import ExampleGroups, grouped
from bevel.batch_selection.padding import PADDING
from bevel.batch_selection.proven_event import Participation, ProvenEvent
from bevel.batch_selection.randomness import RngType, SamplingPurpose, fixed_seed, seed_of, stream
from bevel.batch_selection.sampler import BatchSelectionStrategy
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError


@dataclasses.dataclass(frozen=True, eq=False)
class ExamplesByUser:
    """The examples of each user, in data set order. Users are ordered by id.

    Build it once and pass it to `batch` instead of `user_ids`, which would be sorted at every call.
    """

    user_ids: np.ndarray  # one id per user, sorted
    examples: ExampleGroups

    @classmethod
    def of(cls, user_ids: "np.ndarray | ExamplesByUser") -> "ExamplesByUser":
        """Groups examples by user. `user_ids` holds the id of each example's user."""
        if isinstance(user_ids, ExamplesByUser):
            return user_ids
        ids = np.asarray(user_ids)
        if ids.ndim != 1:
            raise FixArgumentsError(
                f"user_ids has shape {ids.shape}: pass a 1-D array with one id per example."
            )
        users, labels = np.unique(ids, return_inverse=True)
        return cls(users, grouped(labels, len(users)))

    def __len__(self) -> int:
        return len(self.user_ids)


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
    """

    base_strategy: BatchSelectionStrategy
    examples_per_user_per_batch: int = 1
    shuffle_per_user: bool = False

    def __post_init__(self) -> None:
        whole_number("examples_per_user_per_batch", self.examples_per_user_per_batch, 1)

    @property
    def iterations(self) -> int:
        return self.base_strategy.iterations  # type: ignore[attr-defined]

    def batch_iterator(self, user_ids: np.ndarray, rng: RngType = None) -> Iterator[np.ndarray]:
        """Yields one array per step. `user_ids` holds the id of each example's user."""
        users, seed = ExamplesByUser.of(user_ids), seed_of(rng)
        selected = self.base_strategy.batch_iterator(len(users), seed)
        return (self._examples(users, batch, step, seed) for step, batch in enumerate(selected))

    def batch(
        self, step: int, user_ids: "np.ndarray | ExamplesByUser", rng: int, **process: int
    ) -> np.ndarray:
        """Returns the rows of step `step`; `process` takes the base sampler's process arguments."""
        users, seed = ExamplesByUser.of(user_ids), fixed_seed(rng)
        base: Any = self.base_strategy
        return self._examples(users, base.batch(step, len(users), seed, **process), step, seed)

    def _examples(
        self, users: ExamplesByUser, selected: np.ndarray, step: int, seed: int
    ) -> np.ndarray:
        count = self.examples_per_user_per_batch
        rows = np.full((len(selected), count), PADDING, np.int64)
        for row, user in zip(rows, selected.tolist(), strict=True):
            owned = users.examples.of(user)
            if len(owned) > count:
                if self.shuffle_per_user:
                    rng = stream(seed, SamplingPurpose.WITHIN_USER, step, user)
                    owned = rng.choice(owned, count, replace=False)
                else:
                    # Not the number of earlier uses: step k would depend on all steps before it.
                    start = step // self.participation().min_separation * count
                    owned = np.take(owned, start + np.arange(count), mode="wrap")
            row[: len(owned)] = owned
        return rows

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
