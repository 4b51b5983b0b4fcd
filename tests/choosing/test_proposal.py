"""What is given is kept, what is left out is proposed, and nothing exceeds the budget."""

import dataclasses

import pytest

from bevel.choosing import NoiseCurve, NoisePoint, Request, propose
from bevel.choosing import noise_curve as curves
from bevel.choosing import proposal as proposals
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPSGDConfig

SMALL = Request(num_units=2000, epsilon=4.0, epochs=10)


@pytest.fixture(autouse=True)
def fixture_few_points(monkeypatch):
    monkeypatch.setattr(curves, "POINTS_BELOW", 2)
    monkeypatch.setattr(curves, "POINTS_ABOVE", 1)


@pytest.fixture(scope="module", name="small")
def fixture_small():
    return propose(SMALL)


def test_the_proposed_plan_is_within_the_budget(small):
    chosen = {name: choice.value for name, choice in small.choices.items()}
    config = DPSGDConfig.default(
        2000, chosen["batch_size"], chosen["steps"], noise_multiplier=small.point.noise_multiplier
    )
    spent = config.make().epsilon(delta=chosen["delta"])
    assert 3.9 < spent <= 4.0


def test_the_batch_is_at_the_knee_of_the_curve():
    found = propose(dataclasses.replace(SMALL, epochs=40))
    assert found.curve.excess(found.point) <= proposals.TOLERATED_EXCESS
    smaller = [p for p in found.curve.points if p.batch_size < found.point.batch_size]
    assert smaller and all(found.curve.excess(p) > proposals.TOLERATED_EXCESS for p in smaller)


def test_every_number_has_a_reason_and_only_epsilon_and_epochs_were_given(small):
    given = [name for name, choice in small.choices.items() if choice.given]
    assert given == ["epsilon", "epochs"]
    assert all(choice.reason for choice in small.choices.values())
    assert "2,000" in small.choices["delta"].reason
    assert small.choices["delta"].value == pytest.approx(1e-5)


def test_everything_that_is_given_is_kept():
    request = dataclasses.replace(
        SMALL, epochs=None, delta=1e-4, batch_size=100.0, steps=50, clip_norm=0.3, learning_rate=7.0
    )
    found = propose(request).choices
    assert {name: choice.value for name, choice in found.items()} == {
        "epsilon": 4.0,
        "delta": 1e-4,
        "epochs": 2.5,
        "batch_size": 100.0,
        "steps": 50,
        "clip_norm": 0.3,
        "learning_rate": 7.0,
    }
    assert [name for name, choice in found.items() if not choice.given] == ["epochs"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"batch_size": 200.0, "epochs": 5}, (200, 50)),
        ({"steps": 40, "epochs": 5}, (250, 40)),
        ({"batch_size": 400.0, "epochs": None}, (400, 200)),
    ],
)
def test_two_of_batch_size_steps_and_epochs_give_the_third(given, expected):
    found = propose(dataclasses.replace(SMALL, **given))
    assert (found.point.batch_size, found.point.steps) == expected


def test_given_steps_leave_the_batch_size_to_the_curve():
    found = propose(dataclasses.replace(SMALL, epochs=None, steps=30))
    assert {point.steps for point in found.curve.points} == {30}
    assert found.curve.epochs is None
    assert found.curve.excess(found.point) <= proposals.TOLERATED_EXCESS


def curve_of(*points):
    """A curve of (batch size, steps, noise over the run above the least)."""
    made = [
        NoisePoint(size, steps, (1 + excess) * size * steps**0.5) for size, steps, excess in points
    ]
    return NoiseCurve(tuple(made), least=1.0, epochs=1.0)


@pytest.mark.parametrize(
    ("curve", "steps_are_fixed", "size", "limit"),
    [
        (curve_of((32, 2000, 0.5), (64, 1000, 0.1), (128, 500, 0.0)), False, 64, "noise"),
        (curve_of((32, 20, 0.5), (64, 20, 0.1), (128, 20, 0.0)), True, 64, "noise"),
        (curve_of((32, 9000, 0.1), (64, 2500, 0.1), (128, 500, 0.0)), False, 64, "most steps"),
        (curve_of((32, 900, 0.6), (64, 300, 0.5), (128, 20, 0.0)), False, 64, "fewest steps"),
        (curve_of((32, 900, 0.6), (64, 300, 0.5)), False, 64, "all"),
        (curve_of((2, 900, 0.0), (4, 800, 0.0), (16, 700, 0.0)), False, 16, "most steps"),
        (curve_of((2, 900, 0.0), (4, 800, 0.0)), False, 4, "most steps"),
        (curve_of((32, 9, 0.6), (64, 3, 0.1)), False, 32, "fewest steps"),
        (curve_of((32, 9000, 0.1), (64, 8000, 0.1)), False, 64, "most steps"),
    ],
)
def test_the_batch_is_limited_by_noise_and_steps(curve, steps_are_fixed, size, limit):
    point, found = proposals.chosen_point(curve, steps_are_fixed)
    assert (point.batch_size, found) == (size, limit)
    assert found in proposals.LIMITS


def test_large_data_sets_get_fewer_epochs():
    epochs = [
        proposals.epochs_for(Request(num_units=n, epsilon=1.0)).value for n in (10, 10**6, 10**9)
    ]
    assert epochs == [40, 13, 1]


def test_signal_to_noise_needs_the_number_of_parameters(small):
    assert small.signal_to_noise is None
    known = dataclasses.replace(small, request=dataclasses.replace(SMALL, parameters=100))
    assert known.signal_to_noise == pytest.approx(0.1 / small.point.noise_per_step)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 1.0, "steps": 1, "epochs": 1.0}, "all given, but any two"),
        ({"batch_size": 3000.0, "epochs": None}, "at most 2000, the number of examples"),
        ({"epsilon": -1.0}, "epsilon=-1.0"),
        ({"delta": 2.0}, "delta=2.0"),
        ({"epochs": 0.0}, "epochs=0.0: pass a positive number"),
        ({"steps": 0, "epochs": None}, "steps=0"),
        ({"num_units": 0}, "num_examples=0"),
        ({"relation": "ADD"}, "neighboring_relation='ADD'"),
    ],
)
def test_wrong_numbers_are_named(given, message):
    with pytest.raises(FixArgumentsError, match=message):
        dataclasses.replace(SMALL, **given)
