"""The entries of a ledger after its header: charges and releases."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from bevel.accounting.ledger.event_json import event_to_json
from bevel.checks import shown, whole_number
from bevel.errors import FixArgumentsError, RestoreLedgerError

COMMITMENT = re.compile("[0-9a-f]{64}")
CONTENT = re.compile("([0-9a-f]{32})?")


@dataclasses.dataclass(frozen=True)
class Charge:
    """Charges the event of the steps `first`, ..., `stop - 1` of a run, given as JSON.

    The charge also releases the steps before `released`; None means `stop`. A charge may cover more
    steps than it releases, because with correlated noise steps are charged a round at a time.
    `content` is a keyed digest of what is released, which reveals nothing without the key. It may
    be empty.
    """

    run: str
    plan: str
    key: str
    attempt: int
    first: int
    stop: int
    event: Mapping[str, Any]
    released: int | None = None
    content: str = ""

    def __post_init__(self) -> None:
        _check_names(self)
        for name in ("attempt", "first", "stop"):
            whole_number(name, getattr(self, name), 0)
        if self.stop <= self.first:
            raise FixArgumentsError(
                f"steps {self.first} to {self.stop}: the range is empty. Pass as stop the step "
                "after the last one."
            )
        if self.released is None:
            object.__setattr__(self, "released", self.stop)
        whole_number("released", self.released, 0)
        if not self.first < self.released_until <= self.stop:
            raise FixArgumentsError(
                f"released={self.released} of a charge for steps {self.first} to {self.stop}: pass "
                f"the step after the last released one, from {self.first + 1} to {self.stop}."
            )

    @property
    def released_until(self) -> int:
        return self.stop if self.released is None else self.released

    def entry(self) -> dict[str, Any]:
        return {"kind": "charge"} | dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Release:
    """Marks the steps before `stop`, which are already charged, as released by an attempt."""

    run: str
    plan: str
    key: str
    attempt: int
    stop: int
    content: str = ""

    def __post_init__(self) -> None:
        _check_names(self)
        for name in ("attempt", "stop"):
            whole_number(name, getattr(self, name), 0)

    def entry(self) -> dict[str, Any]:
        return {"kind": "release"} | dataclasses.asdict(self)


KINDS: dict[str, type[Charge] | type[Release]] = {"charge": Charge, "release": Release}


def entry_from_json(entry: dict[str, Any], version: int, where: str) -> Charge | Release:
    """Returns the charge or release in a line of a ledger, after checking it.

    Charges of version 1 do not say what was released, so all their steps count as released.
    """
    kind = KINDS.get(str(entry.get("kind")))
    fields = {field.name for field in dataclasses.fields(kind)} if kind else set()
    names = set(entry) - {"kind"}
    as_version_1 = version == 1 and kind is Charge and names == fields - {"released", "content"}
    if kind is None or not (names == fields or as_version_1):
        raise RestoreLedgerError(
            f"{where} has an entry of kind {entry.get('kind')!r} with the fields {sorted(entry)}, "
            "which this version of bevel cannot read, so what was spent is unknown. Read it with "
            "the version of bevel that wrote it."
        )
    if "event" in names:
        event_to_json(entry["event"])
    if "released" in names:
        whole_number("released", entry["released"], 0)  # None is allowed in calls, not in files
    return kind(**{name: entry[name] for name in names})


def _check_names(entry: Charge | Release) -> None:
    if not (isinstance(entry.key, str) and COMMITMENT.fullmatch(entry.key)):
        # The message does not show the value, because it may be the key itself.
        raise FixArgumentsError(
            "key is not a commitment: pass key_commitment(key, salt), never the key itself."
        )
    if not (isinstance(entry.content, str) and CONTENT.fullmatch(entry.content)):
        raise FixArgumentsError(
            f"content={shown(entry.content)}: pass a keyed digest of 32 hexadecimal digits, or ''."
        )
    for name in ("run", "plan"):
        value = getattr(entry, name)
        if not isinstance(value, str) or not value:
            raise FixArgumentsError(f"{name}={value!r}: pass a non-empty string.")
