"""What may be claimed for a sampler: an event, and the neighbouring relations it is proven for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Names of dp_accounting.NeighboringRelation, which is not imported for them: it takes seconds.
ADD_OR_REMOVE_ONE = "ADD_OR_REMOVE_ONE"
REPLACE_ONE = "REPLACE_ONE"
REPLACE_SPECIAL = "REPLACE_SPECIAL"

# Where every example is selected by itself, whether others are there or not.
ALL_RELATIONS = (ADD_OR_REMOVE_ONE, REPLACE_SPECIAL, REPLACE_ONE)
# Where the number of examples has a part in the selection, so that it must not change.
SAME_SIZE = (REPLACE_SPECIAL, REPLACE_ONE)
# Where the proof compares with the absence of an example.
ABSENCE = (ADD_OR_REMOVE_ONE, REPLACE_SPECIAL)


@dataclasses.dataclass(frozen=True)
class ProvenEvent:
    """The event of a sampler, as a function of `bevel.accounting` and its arguments.

    `bevel.accounting.event_of(strategy, noise_multiplier, ...)` builds it, for the relations listed
    here and no others. The noise multiplier is the one argument that a sampler does not know.
    """

    function: str
    arguments: Mapping[str, Any]
    relations: tuple[str, ...]
    takes_strategy: bool = False  # the event also depends on the matrix that correlates the noise


@dataclasses.dataclass(frozen=True)
class Participation:
    """How often one example can take part: what the sensitivity of correlated noise depends on.

    Two uses of an example are at least `min_separation` steps apart (1: it may be used at every
    step), and there are at most `max_participations` of them.
    """

    min_separation: int
    max_participations: int
