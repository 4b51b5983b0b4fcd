"""Checks budgets, neighbouring relations and noise multipliers that users pass."""

import math
import warnings
from typing import TypeAlias

from dp_accounting import NeighboringRelation

from bevel.checks import as_float, is_real, shown, whole_number
from bevel.errors import FixArgumentsError

Relation: TypeAlias = NeighboringRelation | str


def check_budget(
    epsilon: float | None = None, delta: float | None = None, num_examples: int | None = None
) -> None:
    """Raises unless epsilon > 0 and 0 < delta < 1; warns if delta exceeds 1 / num_examples.

    `num_examples` is the number of privacy units: the number of users, if users are protected. With
    a larger delta, publishing one random unit's data in the clear would be within the budget.
    """
    if epsilon is not None and not (is_real(epsilon) and 0 < as_float(epsilon) < math.inf):
        raise FixArgumentsError(
            f"epsilon={shown(epsilon)}: pass a positive number, such as 3. Zero would allow no "
            "release."
        )
    if delta is not None and not (is_real(delta) and 0 < delta < 1):
        raise FixArgumentsError(
            f"delta={shown(delta)}: pass a number between 0 and 1, well below one over the number "
            "of examples. Gaussian noise cannot give delta = 0."
        )
    if num_examples is not None:
        whole_number("num_examples", num_examples)
    if delta is not None and num_examples is not None and delta * num_examples > 1:
        warnings.warn(
            f"delta={delta} is larger than 1 / {num_examples}: a mechanism that publishes a random "
            "record would satisfy it. Use a delta well below one over the number of units.",
            stacklevel=3,
        )


def relation_of(relation: Relation) -> NeighboringRelation:
    """Converts a relation or its name to dp-accounting's enum."""
    if isinstance(relation, NeighboringRelation):
        return relation
    if isinstance(relation, str) and relation in NeighboringRelation.__members__:
        return NeighboringRelation[relation]
    raise FixArgumentsError(
        f"neighboring_relation={shown(relation)}: pass one of dp_accounting.NeighboringRelation."
        f"{{{', '.join(NeighboringRelation.__members__)}}}, or its name."
    )


def checked_noise(noise_multiplier: float) -> float:
    """Returns the noise multiplier as a float. It may be 0, which means no privacy."""
    if not (is_real(noise_multiplier) and 0 <= as_float(noise_multiplier) < math.inf):
        raise FixArgumentsError(
            f"noise_multiplier={shown(noise_multiplier)}: pass a number of at least 0, the "
            "standard deviation of the noise divided by the bound on one example's contribution."
        )
    return float(noise_multiplier)
