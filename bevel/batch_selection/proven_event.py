"""The privacy event of a sampler and the neighbouring relations it is proven for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Names of dp_accounting.NeighboringRelation. Importing dp_accounting here would take seconds.
ADD_OR_REMOVE_ONE = "ADD_OR_REMOVE_ONE"
REPLACE_ONE = "REPLACE_ONE"
REPLACE_SPECIAL = "REPLACE_SPECIAL"

# For samplers that select every example independently of the others.
ALL_RELATIONS = (ADD_OR_REMOVE_ONE, REPLACE_SPECIAL, REPLACE_ONE)
# For samplers whose selection depends on the number of examples, which must then stay the same.
SAME_SIZE = (REPLACE_SPECIAL, REPLACE_ONE)
# For proofs that compare a run with one where the example is absent.
ABSENCE = (ADD_OR_REMOVE_ONE, REPLACE_SPECIAL)


@dataclasses.dataclass(frozen=True)
class ProvenEvent:
    """The privacy event of a sampler: a function name in `bevel.accounting` and its arguments.

    `bevel.accounting.event_of(sampler, noise_multiplier, ...)` builds the event, and accepts only
    the relations listed here. The noise multiplier is missing because a sampler does not know it.
    """

    function: str
    arguments: Mapping[str, Any]
    relations: tuple[str, ...]
    takes_strategy: bool = False  # the event also depends on the strategy matrix C


@dataclasses.dataclass(frozen=True)
class Participation:
    """How often one example can take part. The sensitivity of correlated noise depends on it.

    An example is used at most `max_participations` times, and two uses are at least
    `min_separation` steps apart (1 allows every step).
    """

    min_separation: int
    max_participations: int
