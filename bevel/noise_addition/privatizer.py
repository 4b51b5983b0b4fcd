"""The optax transformation that a privatizer is: the only file here that loads optax."""

import dataclasses
from collections.abc import Callable
from typing import Any

import optax


@dataclasses.dataclass(frozen=True)
class NoiseRecord:
    """What a privatizer adds, for a ledger or a report. It tells nothing of the key."""

    distribution: str
    stddev: float
    generator: str
    key_is_secret: bool  # False: made from a seed that anyone can guess, for tests


class Privatizer(optax.GradientTransformationExtraArgs):
    """An optax transformation that adds noise, and `record`: what it adds.

    `update(sum_of_clipped_grads, noise_state)` gives `(noised, noise_state)`. As an extra argument
    it takes `prng_key=`, which replaces the privatizer's own key (with the same generator): a key
    that is an argument of a compiled program does not become part of it.
    """

    record: NoiseRecord

    def __new__(
        cls, init: Callable[..., Any], update: Callable[..., Any], record: NoiseRecord
    ) -> "Privatizer":
        made = super().__new__(cls, init, update)
        made.record = record
        return made
