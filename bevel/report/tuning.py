"""How the settings of a run were chosen, and epsilon with that choice beside epsilon without."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bevel.accounting.rounding import shown_epsilon
from bevel.training.tuning_record import GRID, PRIVATE_SELECTION, PUBLIC, TRIAL, UNKNOWN

if TYPE_CHECKING:
    from bevel.accounting.ledger.spent import Spent

WORDS = {
    UNKNOWN: "unknown: ε excludes tuning, see the assumptions",
    PUBLIC: "costs nothing: the owner states that the settings were chosen by theory, or on data "
    "that is not protected",
    GRID: "a grid of {trials}, all charged: ε includes tuning",
    PRIVATE_SELECTION: "private selection: the best of {trials}, and nothing else, was released; "
    "ε includes tuning",
    TRIAL: "one trial of a private selection, which must not be released",
}
ASSUMPTIONS = {
    PRIVATE_SELECTION: "Tuning: the trials that were not selected, their scores and their number "
    "are secret, no search was given up because it took long, the space of the search was chosen "
    "without looking at the data, and the ledger has every other run on these data whose results "
    "influenced this one.",
    TRIAL: "Tuning: none holds. Nothing of a single trial may be released.",
}
ASSUMED = (
    "Tuning: the ledger has every run on these data whose results influenced this one. Runs that "
    "were used to choose settings and are not in the ledger are not counted, and choosing the best "
    "of several results also reveals something."
)
NOT_FOR_RELEASE = (
    "This is one trial of a private selection. The guarantee of the search holds only if nobody "
    "sees its trials, so nothing can be claimed for this run: release the folder of the search."
)


def _way_of(record: Mapping[str, Any]) -> str:
    """How the settings were chosen. Unknown in the records of earlier versions."""
    return str(_tuning(record).get("way", UNKNOWN))


def tuning_rows(record: Mapping[str, Any], spent: "Spent | None") -> list[tuple[str, str]]:
    """Rows of the facts: how the settings were chosen, and both epsilons if they differ."""
    tuning, way = _tuning(record), _way_of(record)
    words = WORDS.get(way, WORDS[UNKNOWN])
    rows = [("Tuning", words.format(trials=tuning.get("trials") or "trials"))]
    one = tuning.get("epsilon_of_one_trial")
    if spent is not None and one is not None and way in (GRID, PRIVATE_SELECTION):
        # Other runs of the ledger are no part of it. Earlier versions did not record it.
        every = tuning.get("epsilon") or spent.epsilon
        value = f"{shown_epsilon(every)}, and {shown_epsilon(one)} for one trial alone"
        rows.append(("ε with tuning, and without", value))
    return rows


def assumption(record: Mapping[str, Any]) -> str:
    """What the guarantee assumes about the choice of the settings."""
    return ASSUMPTIONS.get(_way_of(record), ASSUMED)


def is_trial(record: Mapping[str, Any]) -> bool:
    return _way_of(record) == TRIAL


def _tuning(record: Mapping[str, Any]) -> Mapping[str, Any]:
    found = record.get("tuning")
    return found if isinstance(found, Mapping) else {}
