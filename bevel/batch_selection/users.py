"""Users in place of examples: a base sampler selects users, and each brings some examples."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from bevel.batch_selection.groups import ExampleGroups, grouped
from bevel.batch_selection.proven_event import Participation, ProvenEvent
from bevel.batch_selection.randomness import RngType, SamplingPurpose, fixed_seed, seed_of, stream
from bevel.batch_selection.sampler import BatchSelectionStrategy
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError

PADDING = -1


@dataclasses.dataclass(frozen=True, eq=False)
class ExamplesByUser:
    """The examples of every user, in the order of the data set; users in the order of their ids.

    Made once from `user_ids`; `batch` takes it in their place, and then need not sort them again.
    """

    user_ids: np.ndarray  # of the users, sorted
    examples: ExampleGroups

    @classmethod
    def of(cls, user_ids: "np.ndarray | ExamplesByUser") -> "ExamplesByUser":
        """From the id of the user of each example."""
        if isinstance(user_ids, ExamplesByUser):
            return user_ids
        ids = np.asarray(user_ids)
        if ids.ndim != 1:
            raise FixArgumentsError(
                f"user_ids has shape {ids.shape}: give one id per example, in one dimension."
            )
        users, user = np.unique(ids, return_inverse=True)
        return cls(users, grouped(user, len(users)))

    def __len__(self) -> int:
        return len(self.user_ids)


@dataclasses.dataclass(frozen=True)
class UserSelectionStrategy:
    """Runs a base sampler over users; a batch is an array (users, examples per user).

    A row holds `examples_per_user_per_batch` different examples of one user, -1 where the user has
    fewer. Which ones is drawn afresh for each step and user: a random set in random order with
    `shuffle_per_user=True`, otherwise neighbours in the order of the data set, from a random place
    on. Clip with `keep_batch_dim=False`, so that a row is one contribution.

    The event is that of the base sampler, and its unit is the user: `num_examples` in it is the
    number of users.
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
        """One array per step, from the id of the user of each example."""
        users, seed = ExamplesByUser.of(user_ids), seed_of(rng)
        selected = self.base_strategy.batch_iterator(len(users), seed)
        return (self._examples(users, batch, step, seed) for step, batch in enumerate(selected))

    def batch(
        self, step: int, user_ids: "np.ndarray | ExamplesByUser", rng: int, **process: int
    ) -> np.ndarray:
        """The rows of step `step`, or of one process's share of them, as the base sampler's."""
        users, seed = ExamplesByUser.of(user_ids), fixed_seed(rng)
        base: Any = self.base_strategy
        return self._examples(users, base.batch(step, len(users), seed, **process), step, seed)

    def _examples(
        self, users: ExamplesByUser, selected: np.ndarray, step: int, seed: int
    ) -> np.ndarray:
        wanted = self.examples_per_user_per_batch
        rows = np.full((len(selected), wanted), PADDING, np.int64)
        for row, user in zip(rows, selected.tolist(), strict=True):
            owned = users.examples.of(user)
            if len(owned) > wanted:
                rng = stream(seed, SamplingPurpose.WITHIN_USER, step, user)
                if self.shuffle_per_user:
                    owned = rng.choice(owned, wanted, replace=False)
                else:
                    owned = np.take(
                        owned, rng.integers(len(owned)) + np.arange(wanted), mode="wrap"
                    )
            row[: len(owned)] = owned
        return rows

    def participation(self) -> Participation:
        """How often one user can take part."""
        return self.base_strategy.participation()

    def proven_event(self, num_users: int, num_bands: int = 1) -> ProvenEvent:
        """The event of the base sampler over `num_users` users. Its unit is the user."""
        return self.base_strategy.proven_event(num_users, num_bands)

    def unamplified_event(self) -> ProvenEvent:
        return self.base_strategy.unamplified_event()

    def selection_relations(self) -> tuple[str, ...]:
        return self.base_strategy.selection_relations()
