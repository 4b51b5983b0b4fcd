"""What a ledger is about: fixed in its first line, for all runs on the data set."""

import dataclasses
import math
from typing import Any

from bevel.errors import FixArgumentsError, RestoreLedgerError

VERSION = 2
READABLE = (1, 2)  # charges of version 1 do not say what was released
UNITS = ("example", "user")
# Names of dp_accounting.NeighboringRelation, which is not imported for them: it takes seconds.
RELATIONS = ("ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL")


@dataclasses.dataclass(frozen=True)
class Budget:
    """What all runs on a data set together may spend, fixed before the first of them."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name, value, top in [("epsilon", self.epsilon, math.inf), ("delta", self.delta, 1)]:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < top:
                raise FixArgumentsError(
                    f"a budget with {name}={value!r}: give epsilon above 0 and delta between 0 and "
                    "1, well below one over the number of units."
                )
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"


@dataclasses.dataclass(frozen=True)
class LedgerHeader:
    """Unit of privacy, neighbouring relation and budget of a ledger.

    Costs compose only if they protect the same thing: an epsilon per example says nothing per
    user, and one under add-or-remove nothing under replace-one.
    """

    unit: str
    relation: str
    budget: Budget | None = None
    version: int = VERSION  # of the file's format

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise FixArgumentsError(f"unit={self.unit!r}: write one of {UNITS}.")
        if self.relation not in RELATIONS:
            raise FixArgumentsError(
                f"relation={self.relation!r}: give one of dp_accounting.NeighboringRelation."
                f"{{{', '.join(RELATIONS)}}}, or its name."
            )

    def check_same(self, other: "LedgerHeader", where: str) -> None:
        """Raises unless a run with the terms `other` may be written to this ledger."""
        for name, why in [
            ("unit", "costs per different units do not compose"),
            ("relation", "costs under different relations do not compose"),
            ("budget", "a budget is fixed beforehand and is that of all runs together"),
        ]:
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                raise FixArgumentsError(
                    f"{where} has the {name} {here}, and it was opened with {there}: {why}. Open "
                    f"it with {name} {here}, or keep another ledger for the other guarantee."
                )

    def entry(self) -> dict[str, Any]:
        budget = None if self.budget is None else dataclasses.asdict(self.budget)
        return {
            "kind": "ledger",
            "version": self.version,
            "unit": self.unit,
            "relation": self.relation,
            "budget": budget,
        }

    @classmethod
    def of_entry(cls, entry: dict[str, Any], where: str) -> "LedgerHeader":
        known = {"kind", "version", "unit", "relation", "budget"}
        version = entry.get("version")
        readable = type(version) is int and version in READABLE
        if entry.get("kind") != "ledger" or not readable or set(entry) != known:
            raise RestoreLedgerError(
                f"{where} does not begin as a ledger of version {VERSION} does "
                f"(kind {entry.get('kind')!r}, version {entry.get('version')!r}). Give the right "
                "file, or read it with the version of bevel that wrote it."
            )
        budget = entry["budget"]
        try:
            fixed = None if budget is None else Budget(**budget)
            return cls(entry["unit"], entry["relation"], fixed, entry["version"])
        except (FixArgumentsError, TypeError) as error:
            raise RestoreLedgerError(f"{where} has terms that are none: {error}") from error
