"""What entries add up to, and which entry may follow which."""

import collections

import pytest

from bevel.accounting.ledger.entries import Charge
from bevel.accounting.ledger.totals import LedgerTotals, event_counts, event_of_text
from bevel.errors import FixArgumentsError

KEY, OTHER_KEY = "a" * 64, "b" * 64


def gaussian(noise=1.0):
    return {"kind": "GaussianDpEvent", "noise_multiplier": noise}


def often(event, count):
    return {"kind": "SelfComposedDpEvent", "event": event, "count": count}


def charge(first, stop, event=None, **changes):
    fields = {"run": "run", "plan": "plan", "key": KEY, "attempt": 0}
    return Charge(first=first, stop=stop, event=event or gaussian(), **{**fields, **changes})


def books_of(*charges):
    books = LedgerTotals()
    for each in charges:
        books.add(each)
    return books


def noises(books, **more):
    return {
        event_of_text(text)["noise_multiplier"]: count
        for text, count in books.events(**more).items()
    }


def test_ranges_that_follow_compose():
    books = books_of(charge(0, 1), charge(1, 2), charge(2, 7, often(gaussian(), 5)))
    assert noises(books) == {1.0: 7}
    assert books.runs["run"].reached == 7


def test_a_range_stated_anew_takes_the_place_of_the_last():
    books = books_of(
        charge(0, 3, gaussian(5.0)), charge(3, 4, gaussian(4.0)), charge(3, 9, gaussian(2.0))
    )
    assert noises(books) == {5.0: 1, 2.0: 1}
    assert noises(books_of(charge(0, 2, gaussian(9.0)), charge(0, 4, gaussian(3.0)))) == {3.0: 1}


def test_a_new_attempt_is_charged_beside_the_old_one():
    books = books_of(
        charge(0, 10, gaussian(9.0)),
        charge(4, 6, gaussian(3.0), attempt=1),
        charge(6, 7, gaussian(3.0), attempt=1),
    )
    assert noises(books) == {9.0: 1, 3.0: 2}
    assert books.runs["run"].reached == 10
    # Even from the same first step, where the same attempt would state it anew.
    again = books_of(charge(0, 10, gaussian(9.0)), charge(0, 10, gaussian(3.0), attempt=1))
    assert noises(again) == {9.0: 1, 3.0: 1}


def test_runs_compose():
    other = {"run": "other", "key": OTHER_KEY, "plan": "another"}
    books = books_of(charge(0, 3, often(gaussian(), 3)), charge(0, 2, gaussian(2.0), **other))
    assert noises(books) == {1.0: 3, 2.0: 1}
    books.add(charge(3, 4))  # the first run goes on
    assert noises(books) == {1.0: 4, 2.0: 1}


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
def test_what_would_be_spent_is_what_is_spent_then(before, new):
    books = books_of(*before)
    foreseen = books.events(with_charge=new)
    unchanged = books.events()
    assert books.events() == unchanged
    books.add(new)
    assert books.events() == foreseen


REFUSED = {
    "begins late": ([], charge(1, 2), "begin at step 0 of attempt 0"),
    "begins with a later attempt": ([], charge(0, 1, attempt=1), "begin at step 0 of attempt 0"),
    "another plan": ([charge(0, 1)], charge(1, 2, plan="p2"), "a run has one plan"),
    "twice": ([charge(0, 1)], charge(0, 1), "charged already"),
    "inside": ([charge(0, 5)], charge(2, 3), "charged already"),
    "before": ([charge(0, 1), charge(1, 2)], charge(0, 1), "charged already"),
    "a gap": ([charge(0, 1)], charge(2, 3), "Charge from 1 on"),
    "across": ([charge(0, 2), charge(2, 4)], charge(1, 6), "Charge from 4 on"),
    "over all": ([charge(0, 2), charge(2, 4)], charge(0, 6), "or state the steps from 2 on anew"),
    "attempt left out": ([charge(0, 1)], charge(0, 1, attempt=2), "begin attempt 1"),
    "attempt gone by": (
        [charge(0, 5), charge(2, 3, attempt=1)],
        charge(5, 6),
        "the ledger is at attempt 1",
    ),
    "attempt with a gap": ([charge(0, 2)], charge(3, 4, attempt=1), "begin there or before"),
    "before the attempt": (
        [charge(0, 5), charge(3, 4, attempt=1)],
        charge(1, 3, attempt=1),
        "Charge from 4 on",
    ),
    "another key": ([charge(0, 1)], charge(1, 2, key=OTHER_KEY), "begun with another key"),
    "key of a run": ([charge(0, 1)], charge(0, 1, run="other"), "have the same key"),
    "key of an earlier attempt": (
        [charge(0, 1), charge(0, 1, attempt=1, key=OTHER_KEY)],
        charge(0, 1, run="other"),
        "have the same key",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_not_follow_is_refused_and_changes_nothing(name):
    before, new, message = REFUSED[name]
    books = books_of(*before)
    events = books.events()
    with pytest.raises(FixArgumentsError, match=message):
        books.add(new)
    assert books.events() == events


def test_compositions_are_counted_by_their_parts():
    event = often({"kind": "ComposedDpEvent", "events": [gaussian(), often(gaussian(2.0), 5)]}, 3)
    counts = event_counts(event)
    assert {event_of_text(t)["noise_multiplier"]: n for t, n in counts.items()} == {1.0: 3, 2.0: 15}
    assert not +event_counts(often(gaussian(), 0))
    assert isinstance(counts, collections.Counter)
