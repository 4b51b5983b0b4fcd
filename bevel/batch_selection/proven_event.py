"""The privacy event of a sampler and the neighbouring relations it is proven for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bevel.checks import flag, instance, one_of, shown, text, whole_number
from bevel.errors import FixArgumentsError

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

    def __post_init__(self) -> None:
        if not text("function", self.function).isidentifier():
            raise FixArgumentsError(
                f"function={shown(self.function)}: pass the name of a function in bevel.accounting."
            )
        instance("arguments", self.arguments, Mapping, "a dict of the function's arguments")
        for name in self.arguments:
            text("a name in arguments", name)
        instance("relations", self.relations, tuple, "a tuple of names of relations")
        for relation in self.relations:
            one_of("a name in relations", relation, ALL_RELATIONS)
        flag("takes_strategy", self.takes_strategy)


@dataclasses.dataclass(frozen=True)
class Participation:
    """How often one example can take part. The sensitivity of correlated noise depends on it.

    An example is used at most `max_participations` times, and two uses are at least
    `min_separation` steps apart (1 allows every step).
    """

    min_separation: int
    max_participations: int

    def __post_init__(self) -> None:
        whole_number("min_separation", self.min_separation, 1)
        whole_number("max_participations", self.max_participations, 0)
