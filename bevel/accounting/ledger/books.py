"""What a ledger's entries add up to, and which entry may come next.

An entry states the event of a range of steps of one attempt of a run: everything that those steps
release. Within an attempt, the next entry

* begins where the last one ended: the two compose; or
* begins where the last one began and ends later: it states the whole range anew, in place of the
  last. That is for noise or batches that tie steps together, where the event of steps 0 to t is not
  that of 0 to s composed with that of s to t.

Steps that are run again with fresh noise are a new attempt, and compose with all that was before.
Memory grows with the runs and the different events, not with the steps.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from bevel.accounting.ledger.hash_chain import canonical
from bevel.errors import FixArgumentsError, RestoreLedgerError

COMMITMENT = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Charge:
    """One entry: the steps `first`, ..., `stop - 1` of a run, and their event as JSON."""

    run: str
    plan: str
    key: str
    attempt: int
    first: int
    stop: int
    event: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not (isinstance(self.key, str) and COMMITMENT.fullmatch(self.key)):
            # Not shown: it may be the key itself.
            raise FixArgumentsError(
                "key is not a commitment: give key_commitment(key, salt), never the key itself."
            )
        for name in ("run", "plan"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise FixArgumentsError(f"{name}={value!r}: give a text that is not empty.")
        for name in ("attempt", "first", "stop"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise FixArgumentsError(f"{name}={value!r}: give a whole number of at least 0.")
        if self.stop <= self.first:
            raise FixArgumentsError(
                f"steps {self.first} to {self.stop}: the range is empty. `stop` is the step after "
                "the last one."
            )

    def entry(self) -> dict[str, Any]:
        return {"kind": "charge"} | dataclasses.asdict(self)

    @classmethod
    def of_entry(cls, entry: dict[str, Any], where: str) -> "Charge":
        fields = {field.name for field in dataclasses.fields(cls)}
        if entry.get("kind") != "charge" or set(entry) != fields | {"kind"}:
            raise RestoreLedgerError(
                f"{where} has an entry of kind {entry.get('kind')!r} with {sorted(entry)}: this "
                "version of bevel does not know it, so what was spent is not known."
            )
        return cls(**{name: entry[name] for name in fields})


@dataclasses.dataclass
class RunBooks:
    """Where a run stands."""

    last: Charge
    reached: int  # the step after the last one that any attempt charged
    begun: int  # the first step of the present attempt


class Books:
    """The sum of a ledger's charges."""

    def __init__(self) -> None:
        self.runs: dict[str, RunBooks] = {}
        # Events by their JSON text. The last charge of each run is not among them: it may still be
        # stated anew.
        self._settled: collections.Counter[str] = collections.Counter()
        self._run_of_key: dict[str, str] = {}

    def add(self, charge: Charge) -> None:
        """Takes a charge in. Raises, and changes nothing, if it may not come next."""
        self.check(charge)
        self._run_of_key[charge.key] = charge.run
        run = self.runs.get(charge.run)
        if run is None:
            self.runs[charge.run] = RunBooks(charge, charge.stop, charge.first)
            return
        if not self.restates(charge):
            self._settled += event_counts(run.last.event)
        if charge.attempt != run.last.attempt:
            run.begun = charge.first
        run.last, run.reached = charge, max(run.reached, charge.stop)

    def events(self, with_charge: Charge | None = None) -> collections.Counter[str]:
        """How often each event was spent, by its JSON text; with one more charge, if given."""
        total = self._settled.copy()
        for name, run in self.runs.items():
            replaced = with_charge and name == with_charge.run and self.restates(with_charge)
            if not replaced:
                total += event_counts(run.last.event)
        if with_charge is not None:
            total += event_counts(with_charge.event)
        return total

    def restates(self, charge: Charge) -> bool:
        """Whether a charge takes the place of the run's last one."""
        run = self.runs.get(charge.run)
        return (
            run is not None
            and charge.attempt == run.last.attempt
            and charge.first == run.last.first
        )

    def check_plan(self, run: str, plan: str) -> None:
        """Raises if the run was begun with another plan."""
        if run in self.runs and self.runs[run].last.plan != plan:
            raise FixArgumentsError(
                f"run {run!r} was begun with the plan {self.runs[run].last.plan}, and this is the "
                f"plan {plan}: a run has one plan. Go on with the first one, or take another name "
                "for the run: both are then charged."
            )

    def check(self, charge: Charge) -> None:
        """Raises unless `charge` may be the next entry."""
        self.check_plan(charge.run, charge.plan)
        name = charge.run
        other = self._run_of_key.get(charge.key, name)
        if other != name:
            raise FixArgumentsError(
                f"runs {other!r} and {name!r} have the same key: their noise would be the same, "
                "and the difference of their outputs without any. Draw a new key for each run."
            )
        run = self.runs.get(name)
        if run is None:
            if charge.first or charge.attempt:
                raise FixArgumentsError(
                    f"run {name!r} is not in the ledger, and its first charge is for step "
                    f"{charge.first} of attempt {charge.attempt}: begin at step 0 of attempt 0."
                )
            return
        last = run.last
        if charge.attempt == last.attempt + 1:
            if charge.first > run.reached:
                raise FixArgumentsError(
                    f"attempt {charge.attempt} of run {name!r} begins at step {charge.first}, and "
                    f"steps are charged up to {run.reached}: begin there or before."
                )
            return
        if charge.attempt != last.attempt:
            raise FixArgumentsError(
                f"attempt {charge.attempt} of run {name!r}: the ledger is at attempt "
                f"{last.attempt}. Go on with that, or begin attempt {last.attempt + 1}."
            )
        if charge.key != last.key:
            raise FixArgumentsError(
                f"attempt {last.attempt} of run {name!r} was begun with another key: go on with "
                f"that key, or charge attempt {last.attempt + 1}."
            )
        if run.begun <= charge.first and charge.stop <= last.stop:
            raise FixArgumentsError(
                f"steps {charge.first} to {charge.stop} of attempt {last.attempt} of run {name!r} "
                "are charged already. Going on needs no charge if nothing of them was released, or "
                "if they are run again exactly, with the same noise. With anything changed, use "
                f"fresh noise and charge attempt {last.attempt + 1}."
            )
        if charge.first != last.stop and charge.first != last.first:
            raise FixArgumentsError(
                f"steps {charge.first} to {charge.stop} of run {name!r}: the last charge was for "
                f"{last.first} to {last.stop}. Charge from {last.stop} on, or state the steps from "
                f"{last.first} on anew."
            )


def event_counts(event: Mapping[str, Any], times: int = 1) -> collections.Counter[str]:
    """An event as parts and how often each is composed, by their JSON text."""
    if event["kind"] == "SelfComposedDpEvent":
        return event_counts(event["event"], times * event["count"])
    if event["kind"] == "ComposedDpEvent":
        total: collections.Counter[str] = collections.Counter()
        for part in event["events"]:
            total += event_counts(part, times)
        return total
    return collections.Counter({canonical(event).decode(): times})


def event_of_text(text: str) -> dict[str, Any]:
    return json.loads(text)
