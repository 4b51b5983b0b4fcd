"""What a ledger's entries add up to, and which entry may come next.

An entry states the event of a range of steps of one attempt of a run: everything that those steps
release. Within an attempt, the next entry

* begins where the last one ended: the two compose; or
* begins where the last one began and ends later: it states the whole range anew. That is for noise
  or batches that tie steps together, where the event of steps 0 to t is not that of 0 to s composed
  with that of s to t. It takes the place of the last if it is proven to cost as much at least
  (dominance.py); otherwise the two compose, so spending never falls.

Steps that are run again with fresh noise are a new attempt, and compose with all that was before.
Memory grows with the runs and the different events, not with the steps.
"""

import collections
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from bevel.accounting.ledger.dominance import restated
from bevel.accounting.ledger.entries import Charge, Release
from bevel.accounting.ledger.hash_chain import canonical
from bevel.errors import FixArgumentsError


@dataclasses.dataclass
class RunTotals:
    """Where a run stands."""

    last: Charge
    reached: int  # the step after the last one that any attempt charged
    begun: int  # the first step of the present attempt
    released: int  # steps before it count as released by the present attempt
    # The events of the last charge, and what it did not take the place of: the next charge may
    # state them anew.
    pending: collections.Counter[str]
    # Digests of what the present attempt released, by the step after its last one.
    contents: dict[int, str] = dataclasses.field(default_factory=dict)


class LedgerTotals:
    """The sum of a ledger's charges."""

    def __init__(self) -> None:
        self.runs: dict[str, RunTotals] = {}
        # Events by their JSON text, without what is pending.
        self._settled: collections.Counter[str] = collections.Counter()
        self._run_of_key: dict[str, str] = {}

    def add(self, entry: Charge | Release) -> None:
        """Takes an entry in. Raises, and changes nothing, if it may not come next."""
        self.check(entry)
        if isinstance(entry, Charge):
            self._add_charge(entry)
        else:
            run = self.runs[entry.run]
            run.released = max(run.released, entry.stop)
            run.contents.setdefault(entry.stop, entry.content)

    def _add_charge(self, charge: Charge) -> None:
        self._run_of_key[charge.key] = charge.run
        pending = self._pending_after(charge)
        run = self.runs.get(charge.run)
        released = charge.released_until
        if run is None:
            contents = {released: charge.content}
            self.runs[charge.run] = RunTotals(
                charge, charge.stop, charge.first, released, pending, contents
            )
            return
        if not self.restates(charge):
            self._settled += run.pending
        if charge.attempt != run.last.attempt:
            run.begun, run.released, run.contents = charge.first, charge.first, {}
        run.released = max(run.released, released)
        run.contents.setdefault(released, charge.content)
        run.last, run.reached, run.pending = charge, max(run.reached, charge.stop), pending

    def events(self, with_charge: Charge | None = None) -> collections.Counter[str]:
        """How often each event was spent, by its JSON text; with one more charge, if given."""
        total = self._settled.copy()
        for name, run in self.runs.items():
            if not (with_charge and name == with_charge.run and self.restates(with_charge)):
                total += run.pending
        if with_charge is not None:
            total += self._pending_after(with_charge)
        return total

    def _pending_after(self, charge: Charge) -> collections.Counter[str]:
        stated = event_counts(charge.event)
        if self.restates(charge):
            return restated(self.runs[charge.run].pending, stated)
        return stated

    def restates(self, charge: Charge) -> bool:
        """Whether a charge states the steps of the run's last one anew."""
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

    def check(self, entry: Charge | Release) -> None:
        """Raises unless `entry` may be the next one."""
        self.check_plan(entry.run, entry.plan)
        if isinstance(entry, Charge):
            self._check_charge(entry)
        else:
            self._check_release(entry)

    def _check_release(self, mark: Release) -> None:
        run = self.runs.get(mark.run)
        if run is None or mark.attempt != run.last.attempt or mark.stop > run.last.stop:
            charged = f"up to {run.last.stop} of attempt {run.last.attempt}" if run else "none"
            raise FixArgumentsError(
                f"releasing steps up to {mark.stop} of attempt {mark.attempt} of run {mark.run!r}: "
                f"charged are {charged}. Charge steps before you release them."
            )
        _check_key(mark, run.last)

    def _check_charge(self, charge: Charge) -> None:
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
        _check_key(charge, last)
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


def _check_key(entry: Charge | Release, last: Charge) -> None:
    if entry.key != last.key:
        raise FixArgumentsError(
            f"attempt {last.attempt} of run {last.run!r} was begun with another key: go on with "
            f"that key, or charge attempt {last.attempt + 1}."
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
