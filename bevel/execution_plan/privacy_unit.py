"""The unit of privacy: one example, or all examples of one user."""

import dataclasses
from typing import Literal

from bevel.batch_selection import BatchSelectionStrategy, UserSelectionStrategy
from bevel.batch_selection.users import checked_row_length
from bevel.checks import flag, one_of, shown
from bevel.errors import FixArgumentsError

UnitName = Literal["example", "user"]


@dataclasses.dataclass(frozen=True)
class Unit:
    """The unit of privacy: what is protected, sampled, clipped and counted."""

    name: UnitName = "example"
    examples_per_user_per_batch: int | None = None
    shuffle_per_user: bool = False

    def __post_init__(self) -> None:
        one_of("unit", self.name, ("example", "user"))
        flag("shuffle_per_user", self.shuffle_per_user)
        if self.name == "user":
            if self.examples_per_user_per_batch is None:
                raise FixArgumentsError(
                    "unit='user' needs examples_per_user_per_batch: the largest number of examples "
                    "of a user in one batch."
                )
            checked_row_length(self.examples_per_user_per_batch)
        elif self.examples_per_user_per_batch is not None or self.shuffle_per_user:
            raise FixArgumentsError(
                "examples_per_user_per_batch and shuffle_per_user need unit='user', but the unit "
                "is 'example', which does not protect the examples of one user together."
            )

    def selection(
        self, sampler: BatchSelectionStrategy
    ) -> BatchSelectionStrategy | UserSelectionStrategy:
        """Returns the sampler itself, or one that selects users and some examples of each."""
        if self.examples_per_user_per_batch is None:
            return sampler
        return UserSelectionStrategy(
            sampler, self.examples_per_user_per_batch, self.shuffle_per_user
        )

    def keep_batch_dim(self, requested: bool | None) -> bool:
        """Returns True if the loss gets a batch of one example, False if all those of a user."""
        keep = self.name == "example"
        if requested is not None and requested is not keep:
            raise FixArgumentsError(
                f"keep_batch_dim={requested} with unit={shown(self.name)}: that would clip another "
                f"unit than the plan accounts for. It follows from the unit ({keep}): leave it out."
            )
        return keep
