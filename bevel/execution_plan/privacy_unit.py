"""What is protected: one example, or everything that one user gave."""

import dataclasses
from typing import Any, Literal

from bevel.batch_selection import BatchSelectionStrategy, UserSelectionStrategy
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError

UnitName = Literal["example", "user"]


@dataclasses.dataclass(frozen=True)
class Unit:
    """The unit of privacy: what neighbours differ in, what is sampled, clipped and counted."""

    name: UnitName = "example"
    examples_per_user_per_batch: int | None = None
    shuffle_per_user: bool = False

    def __post_init__(self) -> None:
        if self.name not in ("example", "user"):
            raise FixArgumentsError(f"unit={self.name!r}: write 'example' or 'user'.")
        if self.name == "user":
            if self.examples_per_user_per_batch is None:
                raise FixArgumentsError(
                    "unit='user' needs examples_per_user_per_batch: how many examples a user "
                    "brings to a batch, at most."
                )
            whole_number("examples_per_user_per_batch", self.examples_per_user_per_batch, 1)
        elif self.examples_per_user_per_batch is not None or self.shuffle_per_user:
            raise FixArgumentsError(
                "examples_per_user_per_batch and shuffle_per_user are for unit='user', and the "
                "unit is 'example'. Examples of one user are then not protected together."
            )

    def selection(self, sampler: BatchSelectionStrategy) -> Any:
        """The sampler itself, or users selected by it, each with some examples."""
        if self.examples_per_user_per_batch is None:
            return sampler
        return UserSelectionStrategy(
            sampler, self.examples_per_user_per_batch, self.shuffle_per_user
        )

    def keep_batch_dim(self, asked: bool | None) -> bool:
        """Whether the loss sees a batch of one example (True), or the examples of one user."""
        follows = self.name == "example"
        if asked is not None and asked is not follows:
            raise FixArgumentsError(
                f"keep_batch_dim={asked} with unit={self.name!r}: that would clip another unit "
                f"than the one that is accounted for. It follows from the unit ({follows}): leave "
                "it out."
            )
        return follows
