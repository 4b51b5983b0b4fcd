"""Events as JSON: numbers are exact, and only known kinds are accepted."""

import importlib
import json

import attr
import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bevel.accounting import (
    amplified_bandmf_event,
    balls_in_bins_event,
    dpsgd_event,
    fixed_dpsgd_event,
    gaussian_event,
    private_selection_event,
    random_allocation_event,
    truncated_amplified_bandmf_event,
    truncated_dpsgd_event,
    zcdp_event,
)
from bevel.accounting.ledger import event_from_json, event_to_json
from bevel.accounting.ledger.event_json import KINDS, MAX_DEPTH
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
    "search": private_selection_event(dpsgd_event(ODD, 9, sampling_prob=0.1), ODD * 5, shape=0.5),
    "Poisson search": private_selection_event(gaussian_event(ODD), 5, shape=float("inf")),
    "composed": dp_accounting.ComposedDpEvent([gaussian_event(1.0), gaussian_event(2.0, 3)]),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events_round_trip(name):
    text = json.dumps(event_to_json(EVENTS[name]), allow_nan=False)
    assert event_from_json(json.loads(text)) == EVENTS[name]
    assert event_to_json(json.loads(text)) == event_to_json(EVENTS[name])


def test_every_kind_is_tested():
    def kinds(written):
        inner = [written["event"]] if "event" in written else written.get("events", [])
        return {written["kind"]}.union(*map(kinds, inner))

    assert set().union(*(kinds(event_to_json(e)) for e in EVENTS.values())) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_those_of_the_class(kind):
    module, fields = KINDS[kind]
    source = importlib.import_module(module)
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


def gaussian(noise):
    return {"kind": "GaussianDpEvent", "noise_multiplier": noise}


def poisson(chance, noise=1.0):
    event = gaussian(noise)
    return {"kind": "PoissonSampledDpEvent", "sampling_probability": chance, "event": event}


def bins(strategy, **changes):
    fields = {"noise_multiplier": 1.0, "iterations": 2, "cycle_length": 2, "strategy": strategy}
    return {"kind": "BallsInBinsDpEvent", **fields, **changes}


def sampled(kind, size, batch):
    return {
        "kind": kind,
        "source_dataset_size": size,
        "sample_size": batch,
        "event": gaussian(1.0),
    }


def truncated(**changes):
    fields = {"dataset_size": 9, "sampling_probability": 0.1, "truncated_batch_size": 3}
    kind = {"kind": "TruncatedSubsampledGaussianDpEvent"}
    return {**kind, **fields, "noise_multiplier": 1.0, **changes}


def allocation(iterations, uses, noise=1.0):
    fields = {"noise_multiplier": noise, "iterations": iterations, "total_participations": uses}
    return {"kind": "RandomAllocationDpEvent", **fields}


WITHOUT = "SampledWithoutReplacementDpEvent"
REFUSED = [
    (dp_accounting.GaussianDpEvent(float("nan")), "noise_multiplier=nan: pass a finite number"),
    (dp_accounting.GaussianDpEvent(float("inf")), "noise_multiplier=inf"),
    (gaussian("1"), "pass a finite number"),
    (gaussian(True), "pass a finite number"),
    (gaussian(None), "pass a finite number"),
    (gaussian(10**400), "pass a finite number"),
    (dp_accounting.GaussianDpEvent(-1.0), r"noise_multiplier=-1\.0: pass a number of at least 0"),
    (gaussian(-1e-300), "at least 0"),
    ({"kind": "GaussianDpEvent"}, r"with the fields \[\]"),
    ({"kind": "GaussianDpEvent", "noise_multiplier": 1, "x": 1}, "with the fields"),
    ({"kind": "ComposedDpEvent", "events": "x"}, "pass a list of events"),
    ({"kind": "ComposedDpEvent", "events": 3}, "pass a list of events"),
    ({"kind": "ComposedDpEvent", "events": [gaussian(1.0), gaussian(-1.0)]}, "at least 0"),
    ({"kind": "ZCDpEvent", "rho": -0.1, "xi": 0.0}, "rho=-0.1"),
    ({"kind": "ZCDpEvent", "rho": 0.1, "xi": -1}, "xi=-1"),
    (poisson(-0.1), "pass a probability"),
    (poisson(1.0000001), "pass a probability"),
    (poisson(0.1, -1.0), "at least 0"),
    (sampled(WITHOUT, 5, 6), "sample_size=6 and source_dataset_size=5"),
    (sampled(WITHOUT, 5, 0), "an integer of at least 1"),
    (sampled("SampledWithReplacementDpEvent", 0, 1), "an integer of at least 1"),
    (truncated(noise_multiplier=-1), "at least 0"),
    (truncated(sampling_probability=2), "pass a probability"),
    (truncated(dataset_size=0), "an integer of at least 1"),
    (truncated(truncated_batch_size=-3), "an integer of at least"),
    (bins(1.0), "coefficients"),
    (bins([]), "coefficients"),
    (bins([1.0, [1.0]]), "coefficients"),
    (bins([0.0, 0.0]), "is 0 everywhere"),
    (bins([[1.0, 0.0]]), r"matrix of shape \(2, 2\)"),
    (bins([[1.0, 0.0], [1.0]]), r"matrix of shape \(2, 2\)"),
    (bins([[1.0, 0.5], [1.0, 1.0]]), "lower triangular"),
    (bins([1.0], cycle_length=0), "an integer of at least 1"),
    (bins([1.0], iterations=0), "an integer of at least 1"),
    (bins([1.0], noise_multiplier=-1), "at least 0"),
    (allocation(3, 4), "total_participations=4 and iterations=3"),
    (allocation(3, 0), "an integer of at least 1"),
    (allocation(3, 1, -2.0), "at least 0"),
    (
        dp_accounting.SelfComposedDpEvent(dp_accounting.NoOpDpEvent(), 1.5),
        "an integer of at least",
    ),
    (
        dp_accounting.SelfComposedDpEvent(dp_accounting.NoOpDpEvent(), -1),
        "an integer of at least",
    ),
]


@pytest.mark.parametrize("event, message", REFUSED)
def test_invalid_fields_are_refused(event, message):
    for check in (event_to_json, event_from_json) if isinstance(event, dict) else (event_to_json,):
        with pytest.raises(FixArgumentsError, match=message):
            check(event)


def test_numbers_at_their_limits_are_kept():
    for event in [gaussian(0.0), poisson(0.0), poisson(1.0), sampled(WITHOUT, 5, 5)]:
        assert event_to_json(event) == event
    assert event_to_json(allocation(3, 3)) == allocation(3, 3)


def test_events_are_nested_no_deeper_than_can_be_read_back():
    def nested(depth):
        event = gaussian(1.0)
        for _ in range(depth):
            event = {"kind": "SelfComposedDpEvent", "event": event, "count": 1}
        return event

    assert event_to_json(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 5_000):
        with pytest.raises(FixArgumentsError, match="more than 32 deep"):
            event_to_json(nested(depth))
