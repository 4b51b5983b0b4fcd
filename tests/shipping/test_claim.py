"""Words follow from numbers, for every kind of event and every way in which a run can end."""

import ledger_events
import pytest

from bevel.accounting.ledger.event_json import KINDS
from bevel.shipping import claim


def test_every_kind_of_event_has_words():
    assert claim.WORDS.keys() == KINDS.keys()


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (ledger_events.gaussian(1.5), "Gaussian noise of 1.5 times the sensitivity"),
        (ledger_events.gaussian(0.0), "(none)"),
        (ledger_events.zcdp(0.25, 0.5), "zCDP of rho 0.25 and xi 0.5"),
        (ledger_events.poisson(0.1), "batches that each unit joins with probability 0.1"),
        (ledger_events.fixed(100, 7), "batches of 7 of 100 units, drawn without replacement"),
        (
            ledger_events.truncated(50, 0.1, 9),
            "each of 50 units joins with probability 0.1, cut to",
        ),
        (ledger_events.NOTHING, "nothing that depends on the data"),
        (ledger_events.ALL, "values without noise"),
        ({"kind": "ComposedDpEvent", "events": []}, "nothing that depends on the data"),
        (
            {"kind": "ComposedDpEvent", "events": [ledger_events.ALL, ledger_events.NOTHING]},
            "values without noise; and nothing that depends",
        ),
        (
            {"kind": "SelfComposedDpEvent", "event": ledger_events.gaussian(2.0), "count": 3},
            "3 times: Gaussian noise of 2.0",
        ),
        (
            {"kind": "RandomAllocationDpEvent", "noise_multiplier": 1.0}
            | {"iterations": 9, "total_participations": 2},
            "in 9 steps, of which each unit takes part in 2 random ones",
        ),
        (
            {"kind": "BallsInBinsDpEvent", "noise_multiplier": 1.0, "iterations": 9}
            | {"cycle_length": 3, "strategy": [1.0, 0.5]},
            "correlated over 2 steps, in 9 steps; each unit takes part every 3 steps",
        ),
        (
            ledger_events.search(ledger_events.gaussian(2.0), 5.5),
            "the best of a random number of runs, of which nothing else was released; the number "
            "is geometric with mean 5.5, and each run is: Gaussian noise of 2.0",
        ),
        (
            ledger_events.search(ledger_events.gaussian(2.0), 5.5, 0.25),
            "truncated negative binomial (shape 0.25) with mean 5.5",
        ),
    ],
)
@pytest.mark.fast
def test_events_in_words(event, words):
    assert words in claim.event_in_words(event)


@pytest.mark.parametrize("relation", claim.CHANGED)
@pytest.mark.parametrize("unit", ["example", "user"])
def test_the_claim_names_numbers_unit_and_relation(unit, relation):
    text = claim.claim_of(1.25, 1e-5, unit, relation, key_is_secret=True)
    assert "(1.25, 1e-05)-differentially private" in text and unit in text
    assert claim.CHANGED[relation] in text


def test_nothing_is_claimed_without_epsilon_or_secret():
    for epsilon, secret in ((None, True), (1.0, False), (None, False)):
        text = claim.claim_of(epsilon, 1e-5, "example", "REPLACE_ONE", secret)
        assert text.startswith("Nothing is") and "differentially" not in text


def test_the_status_says_how_far_the_run_came():
    assert "has not ended" in claim.status_of(4, 8, None)
    assert "is complete" in claim.status_of(8, 8, "complete")
    assert claim.status_of(4, 8, "\x1b[2J").endswith("The run has ended: '\\x1b[2J'.")


def test_an_infinite_epsilon_is_none():
    assert claim.stated(float("inf")) is None and claim.stated(2.0) == 2.0


def test_warnings():
    assert claim.warnings_of(1e-5, "example", 1000, True, "complete") == []
    known, large, ended = claim.warnings_of(0.1, "user", 10, False, "ended by the callback")
    assert "known seed" in known and "users (10)" in large and "callback" in ended
