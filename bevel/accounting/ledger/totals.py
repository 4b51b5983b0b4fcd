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
import json
from collections.abc import Mapping
from typing import Any

from bevel.accounting.ledger.dominance import restated
from bevel.accounting.ledger.entries import CONTENT, Charge, Release
from bevel.accounting.ledger.event_json import event_to_json
from bevel.accounting.ledger.hash_chain import canonical
from bevel.checks import whole_number
from bevel.errors import FixArgumentsError

# At least the digests of this many releases of a run are kept. Steps of earlier releases cannot be
# recognised as repeated exactly: if they are run again, they are charged again.
KEPT = 1024


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

    def newest_contents(self) -> dict[int, str]:
        return {stop: self.contents[stop] for stop in sorted(self.contents)[-KEPT:]}

    def released(self, stop: int, content: str) -> None:
        """Marks the steps before `stop` as released, with a digest of what was released."""
        self.released_until = max(self.released_until, stop)
        self.contents.setdefault(stop, content)
        if len(self.contents) > 2 * KEPT:  # not at every release, which would take KEPT each
            self.contents = self.newest_contents()


class LedgerTotals:
    """The sum of a ledger's charges."""

    def __init__(self) -> None:
        self.runs: dict[str, RunTotals] = {}
        # Counts of events by their JSON text, with the pending events of each run.
        self._counts: collections.Counter[str] = collections.Counter()
        self._run_of_key: dict[str, str] = {}

    def add(self, entry: Charge | Release) -> None:
        """Adds an entry. Raises, and changes nothing, if it may not come next."""
        self.check(entry)
        if isinstance(entry, Charge):
            self._add_charge(entry)
        else:
            self.runs[entry.run].released(entry.stop, entry.content)

    def _add_charge(self, charge: Charge) -> None:
        self._run_of_key[charge.key] = charge.run
        pending = self._pending_after(charge)
        for event, more in self.changes(charge).items():
            self._counts[event] += more
            if not self._counts[event]:
                del self._counts[event]
        run = self.runs.get(charge.run)
        if run is None:
            run = RunTotals(charge, charge.stop, charge.first, charge.first, pending)
            self.runs[charge.run] = run
        if charge.attempt != run.last.attempt:
            run.attempt_first = run.released_until = charge.first
            run.contents = {}
        run.released(charge.released_until, charge.content)
        run.charged_until = max(run.charged_until, charge.stop)
        run.last, run.pending = charge, pending

    def events(self, with_charge: Charge | None = None) -> collections.Counter[str]:
        """Counts how often each event was spent, by its JSON text, including `with_charge`."""
        total = self._counts.copy()
        if with_charge is not None:
            total.update(self.changes(with_charge))
        return +total

    def count(self, event: str) -> int:
        """How often one event was spent."""
        return self._counts[event]

    def changes(self, charge: Charge) -> dict[str, int]:
        """How a charge would change the counts of events. Below 0 for an event that it replaces."""
        before = self.runs[charge.run].pending if self.restates(charge) else {}
        after = self._pending_after(charge)
        return {event: after[event] - before.get(event, 0) for event in {*before, *after}}

    def to_json(self) -> dict[str, Any]:
        """The totals, for a summary. Of each run, only the newest digests of contents are kept."""
        runs = {
            name: {
                "last": run.last.entry(),
                "charged_until": run.charged_until,
                "attempt_first": run.attempt_first,
                "released_until": run.released_until,
                "pending": dict(run.pending),
                "contents": {str(k): text for k, text in run.newest_contents().items()},
            }
            for name, run in self.runs.items()
        }
        return {"counts": dict(self._counts), "keys": self._run_of_key, "runs": runs}

    @classmethod
    def from_json(cls, totals: Mapping[str, Any]) -> "LedgerTotals":
        """The totals of a summary. Raises KeyError, TypeError or ValueError for anything else."""
        made = cls()
        made._counts = _checked_counts(totals["counts"])
        made._run_of_key = dict(totals["keys"])
        for name, run in totals["runs"].items():
            last = {key: value for key, value in run["last"].items() if key != "kind"}
            event_to_json(last["event"])
            made.runs[name] = RunTotals(
                Charge(**last),
                whole_number("charged_until", run["charged_until"], 0),
                whole_number("attempt_first", run["attempt_first"], 0),
                whole_number("released_until", run["released_until"], 0),
                _checked_counts(run["pending"]),
                {int(stop): content for stop, content in run["contents"].items()},
            )
        if not (made._is_consistent() and canonical(made.to_json()) == canonical(totals)):
            raise ValueError("no ledger has these totals")
        return made

    def _is_consistent(self) -> bool:
        names = {*self.runs}
        return names.issuperset(self._run_of_key.values()) and all(
            run.attempt_first <= run.last.first
            and run.released_until <= run.last.stop <= run.charged_until
            and run.pending <= self._counts
            and self._run_of_key.get(run.last.key) == name
            and all(CONTENT.fullmatch(content) for content in run.contents.values())
            for name, run in self.runs.items()
        )

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


def _checked_counts(counts: Mapping[str, Any]) -> collections.Counter[str]:
    """Counts of events, as a summary states them. Raises unless there are such events."""
    for text, count in counts.items():
        event_to_json(json.loads(text))
        whole_number("count", count, 1)
    return collections.Counter(counts)


def event_counts(event: Mapping[str, Any], times: int = 1) -> collections.Counter[str]:
    """Splits an event into parts and counts how often each is composed, by JSON text."""
    if event["kind"] == "SelfComposedDpEvent":
        return event_counts(event["event"], times * event["count"])
    if event["kind"] == "ComposedDpEvent":
        total: collections.Counter[str] = collections.Counter()
        for part in event["events"]:
            total.update(event_counts(part, times))
        return total
    return collections.Counter({canonical(event).decode(): times})


def event_of_counts(counts: collections.Counter[str]) -> dict[str, Any]:
    """Composes counted parts into one event, as JSON: the inverse of `event_counts`."""
    parts = [
        {"kind": "SelfComposedDpEvent", "event": json.loads(text), "count": count}
        for text, count in counts.items()
        if count
    ]
    if not parts:
        return {"kind": "NoOpDpEvent"}
    return parts[0] if len(parts) == 1 else {"kind": "ComposedDpEvent", "events": parts}
