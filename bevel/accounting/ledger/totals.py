"""Adds up the entries of a ledger, and checks which entry may come next.

A charge states the event of a range of steps of one attempt of a run: everything those steps
release. Within an attempt, the next charge

* starts where the last one ended, and the two compose; or
* starts where the last one started and ends later, and restates the whole range. This is for
  correlated noise or batches, where the event of steps 0 to t is not the composition of the events
  of 0 to s and s to t. The new charge replaces the last one if it is proven to cost at least as
  much (dominance.py). Otherwise the two compose, so spending never decreases.

Steps that are run again with fresh noise are a new attempt, and compose with everything before.
Memory grows with the number of runs and of distinct events, not with the number of steps.
"""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from bevel.accounting.ledger.dominance import restated
from bevel.accounting.ledger.entries import Charge, Release
from bevel.accounting.ledger.hash_chain import canonical
from bevel.errors import FixArgumentsError


@dataclasses.dataclass
class RunTotals:
    """The state of a run."""

    last: Charge
    charged_until: int  # steps before this one are charged, by any attempt
    attempt_first: int  # the first step of the current attempt
    released_until: int  # steps before this one count as released by the current attempt
    # Events that the next charge may restate: those of the last charge, and those that it restated
    # but did not replace.
    pending: collections.Counter[str]
    # Digests of what the current attempt released, by the step after the last released one.
    contents: dict[int, str] = dataclasses.field(default_factory=dict)


class LedgerTotals:
    """The sum of a ledger's charges."""

    def __init__(self) -> None:
        self.runs: dict[str, RunTotals] = {}
        # Counts of events by their JSON text, without the pending events of each run.
        self._settled: collections.Counter[str] = collections.Counter()
        self._run_of_key: dict[str, str] = {}

    def add(self, entry: Charge | Release) -> None:
        """Adds an entry. Raises, and changes nothing, if it may not come next."""
        self.check(entry)
        if isinstance(entry, Charge):
            self._add_charge(entry)
        else:
            run = self.runs[entry.run]
            run.released_until = max(run.released_until, entry.stop)
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
            run.attempt_first = run.released_until = charge.first
            run.contents = {}
        run.released_until = max(run.released_until, released)
        run.contents.setdefault(released, charge.content)
        run.charged_until = max(run.charged_until, charge.stop)
        run.last, run.pending = charge, pending

    def events(self, with_charge: Charge | None = None) -> collections.Counter[str]:
        """Counts how often each event was spent, by its JSON text, including `with_charge`."""
        total = self._settled.copy()
        for name, run in self.runs.items():
            if not (with_charge and name == with_charge.run and self.restates(with_charge)):
                total += run.pending
        if with_charge is not None:
            total += self._pending_after(with_charge)
        return total

    def _pending_after(self, charge: Charge) -> collections.Counter[str]:
        counts = event_counts(charge.event)
        if self.restates(charge):
            return restated(self.runs[charge.run].pending, counts)
        return counts

    def restates(self, charge: Charge) -> bool:
        """Whether a charge restates the steps of the run's last charge."""
        run = self.runs.get(charge.run)
        return (
            run is not None
            and charge.attempt == run.last.attempt
            and charge.first == run.last.first
        )

    def check_plan(self, run: str, plan: str) -> None:
        """Raises if the run started with another plan."""
        first = self.runs[run].last.plan if run in self.runs else plan
        if first != plan:
            raise FixArgumentsError(
                f"run {run!r} started with the plan {first[:8]}, but this is the plan {plan[:8]}, "
                "and a run has one plan. Resume with the first plan, or give the new run another "
                "name; both runs are then charged."
            )

    def check(self, entry: Charge | Release) -> None:
        """Raises unless `entry` may be the next one."""
        self.check_plan(entry.run, entry.plan)
        if isinstance(entry, Charge):
            self._check_charge(entry)
        else:
            self._check_release(entry)

    def _check_release(self, entry: Release) -> None:
        run = self.runs.get(entry.run)
        if run is None or entry.attempt != run.last.attempt or entry.stop > run.last.stop:
            steps = f"steps up to {run.last.stop} of attempt {run.last.attempt}" if run else "none"
            raise FixArgumentsError(
                f"releasing steps up to {entry.stop} of attempt {entry.attempt} of run "
                f"{entry.run!r}, but it has charged {steps}. Charge steps before you release them."
            )
        _check_key(entry, run.last)

    def _check_charge(self, charge: Charge) -> None:
        name = charge.run
        other = self._run_of_key.get(charge.key, name)
        if other != name:
            raise FixArgumentsError(
                f"runs {other!r} and {name!r} have the same key, so their noise would be the same "
                "and would cancel in the difference of their outputs. Draw a new key for each run."
            )
        run = self.runs.get(name)
        if run is None:
            if charge.first or charge.attempt:
                raise FixArgumentsError(
                    f"the first charge of run {name!r} is for step {charge.first} of attempt "
                    f"{charge.attempt}. Start at step 0 of attempt 0."
                )
            return
        last = run.last
        if charge.attempt == last.attempt + 1:
            if charge.first > run.charged_until:
                raise FixArgumentsError(
                    f"attempt {charge.attempt} of run {name!r} starts at step {charge.first}, but "
                    f"steps are only charged up to {run.charged_until}. Start there or earlier."
                )
            return
        if charge.attempt != last.attempt:
            raise FixArgumentsError(
                f"attempt {charge.attempt} of run {name!r}: the ledger is at attempt "
                f"{last.attempt}. Continue with it, or start attempt {last.attempt + 1}."
            )
        _check_key(charge, last)
        if run.attempt_first <= charge.first and charge.stop <= last.stop:
            raise FixArgumentsError(
                f"steps {charge.first} to {charge.stop} of attempt {last.attempt} of run {name!r} "
                "are already charged. Do not charge them again if none of them was released, or if "
                "they are repeated exactly, with the same noise. If anything changed, use fresh "
                f"noise and charge attempt {last.attempt + 1}."
            )
        if charge.first != last.stop and charge.first != last.first:
            raise FixArgumentsError(
                f"steps {charge.first} to {charge.stop} of run {name!r}: the last charge was for "
                f"steps {last.first} to {last.stop}. Charge the steps from {last.stop} on, or "
                f"restate the steps from {last.first} on."
            )


def _check_key(entry: Charge | Release, last: Charge) -> None:
    if entry.key != last.key:
        raise FixArgumentsError(
            f"attempt {last.attempt} of run {last.run!r} started with another key. Use that key, "
            f"or charge attempt {last.attempt + 1}."
        )


def event_counts(event: Mapping[str, Any], times: int = 1) -> collections.Counter[str]:
    """Splits an event into parts and counts how often each is composed, by JSON text."""
    if event["kind"] == "SelfComposedDpEvent":
        return event_counts(event["event"], times * event["count"])
    if event["kind"] == "ComposedDpEvent":
        total: collections.Counter[str] = collections.Counter()
        for part in event["events"]:
            total += event_counts(part, times)
        return total
    return collections.Counter({canonical(event).decode(): times})
