"""The delta that may be reported after a check by sampling, and deltas from losses."""

import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bevel.accounting import delta as exact_delta
from bevel.accounting import gaussian_event
from bevel.errors import FixArgumentsError
from bevel.experimental.monte_carlo.delta_calculation import (
    delta_from_epsilon_and_samples,
    get_base_delta,
    get_overall_delta,
    minimum_samples_to_calibrate,
    perform_calibration_from_samples,
)

ADD = "ADD_OR_REMOVE_ONE"
NO_EVENT = dp_accounting.NoOpDpEvent()


@pytest.mark.parametrize("base", [0.02, 0.1])
@pytest.mark.parametrize("count", [30, 300])
def test_checks_that_pass_by_chance_are_within_the_overall_delta(base, count):
    overall = get_overall_delta(count, base)
    assert overall > base
    # A mechanism that reveals everything with probability d: each sample is 0 or 1.
    for d in np.linspace(base, 0.99, 200):
        passes = scipy.stats.binom.cdf(math.floor(base * count), count, d)
        assert d * passes <= overall
    # It equals the maximum of the bound.
    grid = np.linspace(base, 0.999, 20000)
    kl = base * np.log(base / grid) + (1 - base) * np.log((1 - base) / (1 - grid))
    assert overall == pytest.approx(np.max(grid * np.exp(-count * kl)), rel=1e-5)


@settings(max_examples=30)
@given(st.floats(-9, -1.1), st.floats(1.05, 50))
def test_the_three_are_inverses(log_target, ratio):
    target = 10**log_target
    base = target / ratio
    count = minimum_samples_to_calibrate(base, target)
    assert get_overall_delta(count, base) <= target
    assert count == 1 or get_overall_delta(count - 1, base) > target
    found = get_base_delta(count, target)
    assert base * (1 - 1e-6) <= found < target
    assert get_overall_delta(count, found) <= target


def losses_of_a_gaussian(noise, count, rng):
    return rng.normal(0.5 / noise**2, 1 / noise, size=count)


def test_deltas_are_those_of_the_mechanism():
    rng = np.random.default_rng(0)
    losses = losses_of_a_gaussian(1.0, 400_000, rng)
    estimate = delta_from_epsilon_and_samples(1.0, losses)
    exact = exact_delta(gaussian_event(1.0), epsilon=1.0, neighboring_relation=ADD)
    assert estimate == pytest.approx(exact, rel=0.02)
    values, counts = np.unique(np.round(losses, 2), return_counts=True)
    assert delta_from_epsilon_and_samples(1.0, values, counts) == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("as_accountant", [True, False])
def test_another_event_is_composed(as_accountant):
    losses = losses_of_a_gaussian(1.0, 100_000, np.random.default_rng(1))
    other = dp_accounting.GaussianDpEvent(2.0)
    if as_accountant:
        other = dp_accounting.pld.PLDAccountant().compose(other)
    estimate = delta_from_epsilon_and_samples(1.0, losses, other_event=other)
    both = dp_accounting.ComposedDpEvent([gaussian_event(1.0), gaussian_event(2.0)])
    exact = exact_delta(both, epsilon=1.0, neighboring_relation=ADD)
    assert estimate == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("base", [1e-15, 1e-12, 1e-6])
def test_small_deltas_have_a_number_of_samples(base):
    count = minimum_samples_to_calibrate(base, 2 * base)
    assert 0.1 / base < count < 100 / base
    assert get_overall_delta(count, base) <= 2 * base < get_overall_delta(count // 2, base)
    assert get_base_delta(count, 2 * base) == pytest.approx(base, rel=1e-3)


def test_the_parameter_closest_to_the_budget_is_found():
    rng = np.random.default_rng(0)
    samples = [losses_of_a_gaussian(noise, 20_000, rng) for noise in (0.5, 1.0, 2.0, 4.0)]
    both = {"positive_samples": samples, "negative_samples": samples}
    assert perform_calibration_from_samples(1.0, 0.05, **both) == (True, 2)
    assert perform_calibration_from_samples(1.0, 0.05, positive_samples=samples[::-1]) == (True, 1)
    assert perform_calibration_from_samples(
        1.0, 0.1, positive_samples=[[0.0], [0.0]], other_event=[NO_EVENT, NO_EVENT]
    ) == (True, 0)
    worse = {"positive_samples": samples, "negative_samples": [samples[0]] * 4}
    fits, smallest = perform_calibration_from_samples(1.0, 0.05, **worse)
    assert not fits and smallest > 0.05
    counts = [np.ones(20_000)] * 4
    others = [dp_accounting.GaussianDpEvent(100.0)] * 4
    assert perform_calibration_from_samples(
        1.0, 0.05, **both, positive_counts=counts, negative_counts=counts, other_event=others
    ) == (True, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: get_overall_delta(0, 0.1),
        lambda: get_overall_delta(10, 0.0),
        lambda: minimum_samples_to_calibrate(0.1, 0.1),
        lambda: minimum_samples_to_calibrate(0.1, 0.1 * (1 + 1e-15)),
        lambda: get_base_delta(3, 1e-6),
        lambda: delta_from_epsilon_and_samples(1.0, []),
        lambda: delta_from_epsilon_and_samples(1.0, [np.nan]),
        lambda: delta_from_epsilon_and_samples(1.0, [1.0], [1.0, 2.0]),
        lambda: delta_from_epsilon_and_samples(1.0, [1.0], [0.0]),
        lambda: perform_calibration_from_samples(1.0, 0.1, positive_samples=[]),
        lambda: perform_calibration_from_samples(
            1.0, 0.1, positive_samples=[[1.0]], negative_samples=[]
        ),
    ],
)
def test_bad_input_is_rejected(call):
    with pytest.raises(FixArgumentsError):
        call()
