"""How the settings of a run were chosen, as its record and its report say it."""

import dataclasses

from bevel.checks import shown
from bevel.errors import FixArgumentsError

UNKNOWN, PUBLIC, GRID = "unknown", "public", "grid"
PRIVATE_SELECTION, TRIAL = "private selection", "trial of a private selection"
WAYS = (UNKNOWN, PUBLIC, GRID, PRIVATE_SELECTION, TRIAL)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the settings of a run were chosen, and what that cost.

    Attributes:
      way: "unknown", so the epsilon excludes tuning; "public", if the owner chose the settings by
        theory or on data that is not protected, which costs nothing; "grid", if every trial is
        released and charged to one ledger; "private selection", for the result of
        `bevel.tuning.tune`; or "trial of a private selection", which must not be released.
      epsilon_of_one_trial: the epsilon without tuning, at the delta of the run.
      epsilon: that of the search or the grid, without other runs of its ledger. Absent from records
        of earlier versions.
      trials: the distribution of the number of trials, in words. The number itself is secret.
    """

    way: str = UNKNOWN
    epsilon_of_one_trial: float | None = None
    trials: str | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.way, str) or self.way not in WAYS:
            raise FixArgumentsError(f"tuning={shown(self.way)}: pass {UNKNOWN!r} or {PUBLIC!r}.")

    @classmethod
    def of(cls, given: "Tuning | str") -> "Tuning":
        """A record from the word that an owner may say about a run: 'unknown' or 'public'."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, str) or given not in (UNKNOWN, PUBLIC):
            raise FixArgumentsError(
                f"tuning={shown(given)}: pass 'public' if the settings were chosen by theory or on "
                "data that is not protected, or 'unknown'. bevel.tuning records the other ways."
            )
        return cls(given)
