"""Events as JSON: exact, and only those that are known."""

import json

import attr
import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bevel.accounting import (
    BallsInBinsDpEvent,
    amplified_bandmf_event,
    balls_in_bins_event,
    dpsgd_event,
    fixed_dpsgd_event,
    gaussian_event,
    random_allocation_event,
    truncated_amplified_bandmf_event,
    truncated_dpsgd_event,
    zcdp_event,
)
from bevel.accounting.ledger import event_from_json, event_to_json
from bevel.accounting.ledger.event_json import KINDS
from bevel.errors import FixArgumentsError

# Numbers with no short decimal form: they must come back to the last bit.
ODD = 1.1 + 1e-16 / 3
EVENTS = {
    "gaussian": gaussian_event(ODD, 7),
    "no noise": dp_accounting.NonPrivateDpEvent(),
    "nothing": dp_accounting.NoOpDpEvent(),
    "zcdp": zcdp_event(ODD, 3),
    "dpsgd": dpsgd_event(ODD, 1000, sampling_prob=1 / 3),
    "fixed": fixed_dpsgd_event(1.3, 5, dataset_size=100, batch_size=7),
    "replaced": fixed_dpsgd_event(1.3, 5, dataset_size=100, batch_size=7, replace=True),
    "truncated": truncated_dpsgd_event(
        1.3, 5, sampling_prob=0.1, num_examples=50, truncated_batch_size=9
    ),
    "bandmf": amplified_bandmf_event(1.3, 50, num_bands=4, sampling_prob=0.1),
    "truncated bandmf": truncated_amplified_bandmf_event(
        1.3, 50, num_bands=4, sampling_prob=0.1, largest_group_size=30, truncated_batch_size=9
    ),
    "bins": balls_in_bins_event(1.3, 6, cycle_length=3, strategy=[1.0, ODD / 3]),
    "bins, matrix": balls_in_bins_event(1.3, 3, cycle_length=3, strategy=np.tri(3)),
    "allocation": random_allocation_event(1.3, 6, total_participations=2),
    "composed": dp_accounting.ComposedDpEvent([gaussian_event(1.0), gaussian_event(2.0, 3)]),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events_come_back_as_they_were(name):
    text = json.dumps(event_to_json(EVENTS[name]), allow_nan=False)
    assert event_from_json(json.loads(text)) == EVENTS[name]
    assert event_to_json(json.loads(text)) == event_to_json(EVENTS[name])


def test_every_kind_is_tried():
    def kinds(written):
        inner = [written["event"]] if "event" in written else written.get("events", [])
        return {written["kind"]}.union(*map(kinds, inner))

    assert set().union(*(kinds(event_to_json(e)) for e in EVENTS.values())) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_those_of_the_class(kind):
    module, fields = KINDS[kind]
    source = dp_accounting if module == "dp_accounting" else __import__(module, fromlist=[kind])
    assert list(fields) == [field.name for field in attr.fields(getattr(source, kind))]


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_numbers_are_kept_to_the_last_bit(noise):
    text = json.dumps(event_to_json(dp_accounting.GaussianDpEvent(noise)))
    assert event_from_json(json.loads(text)).noise_multiplier == noise


def test_numbers_of_numpy_are_written_as_numbers():
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.GaussianDpEvent(np.float64(2.5)), np.int64(3)
    )
    assert json.loads(json.dumps(event_to_json(event))) == {
        "kind": "SelfComposedDpEvent",
        "event": {"kind": "GaussianDpEvent", "noise_multiplier": 2.5},
        "count": 3,
    }


def test_other_kinds_are_refused():
    @attr.s(frozen=True, auto_attribs=True)
    class GaussianDpEvent(dp_accounting.DpEvent):  # the same name, another class
        noise_multiplier: float

    for event in [
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(1.0), 2),
        GaussianDpEvent(1.0),
        "GaussianDpEvent",
        {"noise_multiplier": 1.0},
    ]:
        with pytest.raises(FixArgumentsError, match="could not be read back"):
            event_to_json(event)


@pytest.mark.parametrize(
    "event, message",
    [
        (dp_accounting.GaussianDpEvent(float("nan")), "noise_multiplier=nan: a ledger keeps fin"),
        (dp_accounting.GaussianDpEvent(float("inf")), "noise_multiplier=inf"),
        ({"kind": "GaussianDpEvent", "noise_multiplier": "1"}, "keeps finite numbers"),
        ({"kind": "GaussianDpEvent", "noise_multiplier": True}, "keeps finite numbers"),
        ({"kind": "GaussianDpEvent"}, r"with the fields \[\]"),
        ({"kind": "GaussianDpEvent", "noise_multiplier": 1, "x": 1}, "with the fields"),
        ({"kind": "ComposedDpEvent", "events": "x"}, "give a list of events"),
        (BallsInBinsDpEvent(1.0, 3, 3, 1.0), "coefficients"),
        (dp_accounting.SelfComposedDpEvent(dp_accounting.NoOpDpEvent(), 1.5), "whole numbers"),
        (dp_accounting.SelfComposedDpEvent(dp_accounting.NoOpDpEvent(), -1), "whole numbers"),
    ],
)
def test_values_that_are_no_numbers_are_refused(event, message):
    with pytest.raises(FixArgumentsError, match=message):
        event_to_json(event)
