"""No charge lowers what was spent, even if it restates steps or was written to the file by hand."""

import collections
import json

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_events import event, gaussian, often, total
from plans import CONFIGS, STEPS, plan

from bevel.accounting import dpsgd_event, epsilon, gaussian_event, zcdp_event
from bevel.accounting.ledger import Budget, Ledger, event_to_json
from bevel.accounting.ledger.entries import Charge
from bevel.accounting.ledger.hash_chain import line_of
from bevel.accounting.ledger.totals import LedgerTotals, event_counts
from bevel.errors import FixArgumentsError, StopRunError

TERMS = {"unit": "example", "relation": "ADD_OR_REMOVE_ONE"}
RUN = {"plan": "plan", "key": "a" * 64}

RUN_OF_100 = dpsgd_event(1.0, 100, sampling_prob=0.05)
CHEAPER = {
    "less often": dpsgd_event(1.0, 1, sampling_prob=0.05),
    "rarer": dpsgd_event(1.0, 101, sampling_prob=0.001),
    "more noise": dpsgd_event(30.0, 101, sampling_prob=0.05),
    "nothing": dp_accounting.NoOpDpEvent(),
    "composed of nothing": dp_accounting.ComposedDpEvent([]),
    "never": dp_accounting.SelfComposedDpEvent(gaussian_event(0.1), 0),
    "another kind": zcdp_event(100.0, 1),
}


@pytest.mark.parametrize("name", CHEAPER)
def test_restating_a_cheaper_event_does_not_lower_what_was_spent(name, tmp_path):
    with Ledger.open(tmp_path / "l", **TERMS) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 100, RUN_OF_100)
        before = ledger.spent(1e-5).epsilon
        run.charge(0, 101, CHEAPER[name])
        assert ledger.spent(1e-5).epsilon >= before > 1
    assert Ledger.read(tmp_path / "l").spent(1e-5).epsilon >= before


def test_restating_a_cheaper_event_does_not_free_budget(tmp_path):
    most = epsilon(gaussian_event(2.0), delta=1e-5, neighboring_relation="ADD_OR_REMOVE_ONE")
    with Ledger.open(tmp_path / "l", **TERMS, budget=Budget(most, 1e-5)) as ledger:
        run = ledger.run("run", **RUN)
        run.charge(0, 5, gaussian_event(2.0))
        with pytest.raises(StopRunError):
            run.charge(0, 6, gaussian_event(20.0))
        run.charge(0, 6, dp_accounting.NoOpDpEvent())
        with pytest.raises(StopRunError):
            run.charge(6, 7, gaussian_event(20.0))


def test_a_cheaper_restatement_in_a_file_is_counted_in_addition(tmp_path):
    path = tmp_path / "l"
    with Ledger.open(path, **TERMS) as ledger:
        ledger.run("run", **RUN).charge(0, 100, RUN_OF_100)
        before = ledger.spent(1e-5).epsilon
        written = json.loads(path.read_bytes().splitlines()[-1])["entry"]
        cheap = event_to_json(gaussian_event(50.0))
        text, _ = line_of(written | {"stop": 101, "released": 101, "event": cheap}, 2, ledger.head)
    path.write_bytes(path.read_bytes() + text)
    read = Ledger.read(path)
    assert read.run("run", **RUN).charged_until == 101
    assert read.spent(1e-5).epsilon > before


def test_a_restatement_that_dominates_all_before_it_replaces_them():
    totals = LedgerTotals()
    for stop, noise in [(1, 2.0), (2, 3.0), (3, 1.0)]:
        totals.add(charge(0, stop, gaussian(noise)))
    # 1.0 can only replace one of the two, because each needs its own part.
    assert totals.events() == counts(gaussian(2.0), gaussian(3.0), gaussian(1.0))
    totals.add(charge(0, 4, often(gaussian(0.5), 3)))
    assert totals.events() == counts(often(gaussian(0.5), 3))


@pytest.mark.parametrize("name", CONFIGS)
def test_restated_events_of_plans_replace_the_earlier_ones(name):
    made, totals, charged, statements = plan(name), LedgerTotals(), 0, 0
    for step in range(STEPS):
        if charged <= step:
            first, charged, planned = made.charge(step, step + 1)
            totals.add(charge(first, charged, event_to_json(planned)))
            statements += 1
            assert totals.events() == event_counts(event_to_json(made.event_after(charged)))
    assert statements > 1 or made.mechanism.bounded_by_sampling


def charge(first, stop, event, attempt=0, run="run"):
    key = {"run": "a", "other": "b"}[run] * 64
    return Charge(run, "plan", key, attempt, first, stop, event)


def counts(*events):
    return sum(map(event_counts, events), collections.Counter())


steps = st.integers(0, 6)
charges = st.lists(
    st.tuples(steps, steps, event, st.integers(0, 2), st.sampled_from(["run", "other"])),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(charges)
def test_no_sequence_of_charges_lowers_what_was_spent(sequence):
    totals, spent = LedgerTotals(), 0.0
    for first, length, each, attempt, run in sequence:
        new = charge(first, first + length + 1, each, attempt, run)
        foreseen = totals.events(with_charge=new)
        try:
            totals.add(new)
        except FixArgumentsError:
            pass
        else:
            assert totals.events() == foreseen
            assert total(totals.events()) >= total(event_counts(each)) * (1 - 1e-12)
        assert total(totals.events()) >= spent * (1 - 1e-12)
        spent = total(totals.events())


follow_ups = st.lists(st.tuples(st.booleans(), st.integers(1, 3), event), max_size=25)


@settings(max_examples=150, deadline=None)
@given(follow_ups)
def test_no_sequence_of_valid_charges_lowers_what_was_spent(sequence):
    totals, first, stop, spent = LedgerTotals(), 0, 0, 0.0
    for restating, more, each in sequence:
        first, stop = (first if restating else stop), stop + more
        totals.add(charge(first, stop, each))
        assert total(totals.events()) >= spent * (1 - 1e-12)
        spent = total(totals.events())
