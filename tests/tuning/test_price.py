"""The price of a search: that of its event, above one trial, and calibrated to a budget."""

import math

import pytest
import searches

from bevel.accounting import dpsgd_event, epsilon, gaussian_event
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPSGDConfig
from bevel.tuning import TrialCount, calibrated, epsilon_of_search, selection_event
from bevel.tuning.price import price_of

SETTINGS = {"delta": 1e-5, "neighboring_relation": "ADD_OR_REMOVE_ONE"}
EVENT = dpsgd_event(1.0, 100, sampling_prob=0.05)


@pytest.mark.parametrize("name", ["logarithmic", "geometric", "poisson"])
def test_a_search_costs_more_than_one_trial_and_more_with_more_trials(name):
    costs = [epsilon_of_search(EVENT, TrialCount(k, name), **SETTINGS) for k in (1.1, 5, 50)]
    assert epsilon(EVENT, **SETTINGS) <= costs[0] < costs[1] < costs[2]


def test_the_price_is_that_of_the_event_of_the_search():
    count = TrialCount(7, "geometric")
    price = price_of(EVENT, count, 1e-5, "ADD_OR_REMOVE_ONE")
    assert price.epsilon == epsilon(selection_event(EVENT, count), **SETTINGS)
    assert price.epsilon_of_one_trial == epsilon(EVENT, **SETTINGS)
    assert "with tuning" in str(price) and "for one trial alone" in str(price)


def test_a_private_score_is_paid_for():
    count = TrialCount(7, "geometric")
    scored = epsilon_of_search(EVENT, count, score_event=gaussian_event(10.0), **SETTINGS)
    assert scored > epsilon_of_search(EVENT, count, **SETTINGS)


def test_the_noise_of_a_trial_is_calibrated_to_the_whole_search():
    count = TrialCount(5, "geometric")
    plan = calibrated(searches.config(), count, epsilon=2.0, delta=1e-3).make()
    cost = epsilon_of_search(
        plan.dp_event, count, delta=1e-3, neighboring_relation="ADD_OR_REMOVE_ONE"
    )
    assert 1.97 < cost <= 2.0 and plan.epsilon(delta=1e-3) < 1.7
    assert math.isfinite(plan.mechanism.noise_multiplier)


@pytest.mark.parametrize(
    "changed",
    [
        {"config": 3},
        {"epsilon": 1e-300},
        {"epsilon": 1e9},
        {"epsilon": 1e3},
        {"epsilon": "1"},
        {"delta": 5e-324},
        {"delta": 1},
        {"trials": 3},
        {"score_event": 3},
    ],
)
def test_a_price_that_cannot_be_reached_or_computed_is_refused(changed):
    config = DPSGDConfig(100, 10.0, 5, noise_multiplier=1.0)
    given = {"config": config, "trials": TrialCount(3.0), "epsilon": 1.0, "delta": 1e-3} | changed
    with pytest.raises(FixArgumentsError):
        calibrated(given.pop("config"), given.pop("trials"), **given)
