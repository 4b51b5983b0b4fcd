"""The optax transformation of a privatizer. Only this module of the package imports optax."""

import dataclasses
from collections.abc import Callable
from typing import Any

import optax


@dataclasses.dataclass(frozen=True)
class NoiseRecord:
    """The noise that a privatizer adds, for a ledger or a report. Reveals nothing about the key."""

    distribution: str
    stddev: float
    generator: str
    key_is_secret: bool  # False for a key made from a seed, which anyone can guess


class Privatizer(optax.GradientTransformationExtraArgs):
    """An optax transformation that adds noise, with a `record` of the noise.

    `update(sum_of_clipped_grads, noise_state)` returns `(noised, noise_state)`. It also accepts
    `prng_key=`, a key of the same generator that replaces the privatizer's own. Pass the key this
    way to a compiled function to keep it out of the compiled program.

    `reserve_key()` counts the privatizer's own key as used before it draws noise. A compiled
    function that takes the key as an argument cannot do so.
    """

    record: NoiseRecord
    reserve_key: Callable[[], None]

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        record: NoiseRecord,
        reserve_key: Callable[[], None] = lambda: None,
    ) -> "Privatizer":
        privatizer = super().__new__(cls, init, update)
        privatizer.record = record
        privatizer.reserve_key = reserve_key
        return privatizer
