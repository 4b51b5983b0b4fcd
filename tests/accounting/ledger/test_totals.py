"""Totals of a ledger: what its entries add up to, and which entry may come next."""

import collections
import json

import pytest

from bevel.accounting.ledger.entries import Charge
from bevel.accounting.ledger.event_json import event_to_json
from bevel.accounting.ledger.totals import LedgerTotals, event_counts, event_of_counts
from bevel.errors import FixArgumentsError

KEY, OTHER_KEY = "a" * 64, "b" * 64


def gaussian(noise=1.0):
    return {"kind": "GaussianDpEvent", "noise_multiplier": noise}


def often(event, count):
    return {"kind": "SelfComposedDpEvent", "event": event, "count": count}


def charge(first, stop, event=None, **changes):
    fields = {"run": "run", "plan": "plan", "key": KEY, "attempt": 0}
    return Charge(first=first, stop=stop, event=event or gaussian(), **{**fields, **changes})


def totals_of(*charges):
    totals = LedgerTotals()
    for each in charges:
        totals.add(each)
    return totals


def noises(totals, **more):
    return {
        json.loads(text)["noise_multiplier"]: count for text, count in totals.events(**more).items()
    }


def test_consecutive_ranges_compose():
    totals = totals_of(charge(0, 1), charge(1, 2), charge(2, 7, often(gaussian(), 5)))
    assert noises(totals) == {1.0: 7}
    assert totals.runs["run"].charged_until == 7


def test_a_restated_range_replaces_the_last():
    totals = totals_of(
        charge(0, 3, gaussian(5.0)), charge(3, 4, gaussian(4.0)), charge(3, 9, gaussian(2.0))
    )
    assert noises(totals) == {5.0: 1, 2.0: 1}
    assert noises(totals_of(charge(0, 2, gaussian(9.0)), charge(0, 4, gaussian(3.0)))) == {3.0: 1}


def test_a_new_attempt_is_counted_in_addition():
    totals = totals_of(
        charge(0, 10, gaussian(9.0)),
        charge(4, 6, gaussian(3.0), attempt=1),
        charge(6, 7, gaussian(3.0), attempt=1),
    )
    assert noises(totals) == {9.0: 1, 3.0: 2}
    assert totals.runs["run"].charged_until == 10
    # Even from the same first step, where the same attempt would restate it.
    again = totals_of(charge(0, 10, gaussian(9.0)), charge(0, 10, gaussian(3.0), attempt=1))
    assert noises(again) == {9.0: 1, 3.0: 1}


def test_runs_compose():
    other = {"run": "other", "key": OTHER_KEY, "plan": "another"}
    totals = totals_of(charge(0, 3, often(gaussian(), 3)), charge(0, 2, gaussian(2.0), **other))
    assert noises(totals) == {1.0: 3, 2.0: 1}
    totals.add(charge(3, 4))  # the first run continues
    assert noises(totals) == {1.0: 4, 2.0: 1}


@pytest.mark.parametrize(
    "before, new",
    [
        ([], charge(0, 1, gaussian(3.0))),
        ([charge(0, 1)], charge(1, 2)),
        ([charge(0, 1)], charge(0, 2, gaussian(0.5))),
        ([charge(0, 1)], charge(0, 2, gaussian(0.5), attempt=1)),
        ([charge(0, 1)], charge(0, 2, gaussian(0.5), run="other", key=OTHER_KEY)),
    ],
)
def test_events_with_a_charge_are_the_events_after_it(before, new):
    totals = totals_of(*before)
    foreseen = totals.events(with_charge=new)
    unchanged = totals.events()
    assert totals.events() == unchanged
    totals.add(new)
    assert totals.events() == foreseen


REFUSED = {
    "begins late": ([], charge(1, 2), "Start at step 0 of attempt 0"),
    "begins with a later attempt": ([], charge(0, 1, attempt=1), "Start at step 0 of attempt 0"),
    "another plan": ([charge(0, 1)], charge(1, 2, plan="p2"), "a run has one plan"),
    "twice": ([charge(0, 1)], charge(0, 1), "already charged"),
    "inside": ([charge(0, 5)], charge(2, 3), "already charged"),
    "before": ([charge(0, 1), charge(1, 2)], charge(0, 1), "already charged"),
    "a gap": ([charge(0, 1)], charge(2, 3), "Charge the steps from 1 on"),
    "across": ([charge(0, 2), charge(2, 4)], charge(1, 6), "Charge the steps from 4 on"),
    "over all": ([charge(0, 2), charge(2, 4)], charge(0, 6), "or restate the steps from 2 on"),
    "attempt left out": ([charge(0, 1)], charge(0, 1, attempt=2), "start attempt 1"),
    "attempt gone by": (
        [charge(0, 5), charge(2, 3, attempt=1)],
        charge(5, 6),
        "the ledger is at attempt 1",
    ),
    "attempt with a gap": ([charge(0, 2)], charge(3, 4, attempt=1), "Start there or earlier"),
    "before the attempt": (
        [charge(0, 5), charge(3, 4, attempt=1)],
        charge(1, 3, attempt=1),
        "Charge the steps from 4 on",
    ),
    "another key": ([charge(0, 1)], charge(1, 2, key=OTHER_KEY), "started with another key"),
    "key of a run": ([charge(0, 1)], charge(0, 1, run="other"), "have the same key"),
    "key of an earlier attempt": (
        [charge(0, 1), charge(0, 1, attempt=1, key=OTHER_KEY)],
        charge(0, 1, run="other"),
        "have the same key",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_charge_is_refused_and_changes_nothing(name):
    before, new, message = REFUSED[name]
    totals = totals_of(*before)
    events = totals.events()
    with pytest.raises(FixArgumentsError, match=message):
        totals.add(new)
    assert totals.events() == events


def test_compositions_are_counted_by_their_parts():
    event = often({"kind": "ComposedDpEvent", "events": [gaussian(), often(gaussian(2.0), 5)]}, 3)
    counts = event_counts(event)
    assert {json.loads(t)["noise_multiplier"]: n for t, n in counts.items()} == {1.0: 3, 2.0: 15}
    assert not +event_counts(often(gaussian(), 0))
    assert isinstance(counts, collections.Counter)


def test_counted_parts_compose_into_one_event_again():
    for event in (
        gaussian(),
        often(gaussian(), 3),
        {"kind": "ComposedDpEvent", "events": [often(gaussian(), 3), gaussian(2.0), gaussian()]},
    ):
        counts = event_counts(event)
        assert event_counts(event_to_json(event_of_counts(counts))) == counts
    assert event_of_counts(collections.Counter()) == {"kind": "NoOpDpEvent"}
    assert event_of_counts(event_counts(often(gaussian(), 0))) == {"kind": "NoOpDpEvent"}
