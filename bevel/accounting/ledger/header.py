"""The header of a ledger: privacy unit, neighbouring relation and budget, for all its runs."""

import dataclasses
import math
from typing import Any

from bevel.accounting.rounding import shown_delta
from bevel.checks import as_float, instance, one_of, shown
from bevel.errors import FixArgumentsError, RestoreLedgerError

VERSION = 3
# Charges of version 1 do not say what was released. Version 3 has summaries.
READABLE = (1, 2, 3)
UNITS = ("example", "user")
# Names of dp_accounting.NeighboringRelation, copied because importing it takes seconds.
RELATIONS = ("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL")


@dataclasses.dataclass(frozen=True)
class Budget:
    """What all runs on a data set may spend together. Fix it before the first run."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name, value, limit in [("epsilon", self.epsilon, math.inf), ("delta", self.delta, 1)]:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < as_float(value) < limit:
                raise FixArgumentsError(
                    f"a budget with {name}={shown(value)}: pass epsilon above 0 and delta between "
                    "0 and 1, well below 1 / (number of examples or users)."
                )
            object.__setattr__(self, name, float(value))

    def __str__(self) -> str:
        return f"epsilon {shown_delta(self.epsilon)} at delta {shown_delta(self.delta)}"


@dataclasses.dataclass(frozen=True)
class LedgerHeader:
    """Privacy unit, neighbouring relation and budget of a ledger.

    Costs compose only if they have the same unit and relation: an epsilon per example says nothing
    about users, and an epsilon under add-or-remove says nothing about replace-one.
    """

    unit: str
    relation: str
    budget: Budget | None = None
    version: int = VERSION  # of the file's format

    def __post_init__(self) -> None:
        one_of("unit", self.unit, UNITS)
        one_of("relation", self.relation, RELATIONS)
        instance("budget", self.budget, Budget | None, "Budget(epsilon, delta), or None")

    def check_same(self, other: "LedgerHeader", where: str) -> None:
        """Raises unless the ledger may be opened with the header `other`."""
        for name, reason in [
            ("unit", "costs per different units do not compose"),
            ("relation", "costs under different relations do not compose"),
            ("budget", "a budget is fixed beforehand and covers all runs together"),
        ]:
            recorded, requested = getattr(self, name), getattr(other, name)
            if recorded != requested:
                raise FixArgumentsError(
                    f"{where} has the {name} {recorded}, but was opened with {requested}: {reason}."
                    f" Open it with {name} {recorded}, or use a separate ledger."
                )

    def entry(self) -> dict[str, Any]:
        return {"kind": "ledger"} | dataclasses.asdict(self)

    @classmethod
    def from_entry(cls, entry: dict[str, Any], where: str) -> "LedgerHeader":
        known = {"kind", "version", "unit", "relation", "budget"}
        version = entry.get("version")
        readable = type(version) is int and version in READABLE
        if entry.get("kind") != "ledger" or not readable or set(entry) != known:
            raise RestoreLedgerError(
                f"{where} does not begin with the header of a ledger of version 1 to {VERSION} "
                f"(kind {entry.get('kind')!r}, version {entry.get('version')!r}). Pass the right "
                "file, or read it with the version of bevel that wrote it."
            )
        try:
            budget = None if entry["budget"] is None else Budget(**entry["budget"])
            return cls(entry["unit"], entry["relation"], budget, entry["version"])
        except (FixArgumentsError, TypeError) as error:
            raise RestoreLedgerError(f"{where} has an invalid header: {error}") from error
