"""Calibration: within the budget, close to it, fast, and the same when repeated."""

import functools
import time

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from bevel.accounting import (
    MonteCarlo,
    balls_in_bins_event,
    calibrate_batch_size,
    calibrate_iterations,
    calibrate_noise_multiplier,
    dpsgd_event,
    epsilon,
    fixed_dpsgd_event,
    gaussian_event,
    truncated_dpsgd_event,
    zcdp_event,
)
from bevel.accounting.calibration import largest_that_fits
from bevel.errors import FixArgumentsError

ADD, ONE, SPECIAL = "ADD_OR_REMOVE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"

COARSE = functools.partial(PLDAccountant, value_discretization_interval=1e-3)

CASES = {
    "dpsgd": (lambda s: dpsgd_event(s, 200, sampling_prob=0.1), ADD, None),
    "dpsgd replace-one": (lambda s: dpsgd_event(s, 200, sampling_prob=0.1), ONE, None),
    "dpsgd by PLD": (lambda s: dpsgd_event(s, 50, sampling_prob=0.1), ADD, PLDAccountant),
    "dpsgd by RDP": (lambda s: dpsgd_event(s, 200, sampling_prob=0.1), ADD, RdpAccountant),
    "gaussian": (lambda s: gaussian_event(s, 7), ADD, None),
    "gaussian replace-one by RDP": (lambda s: gaussian_event(s, 7), ONE, RdpAccountant),
    "zcdp": (lambda s: zcdp_event(s, 7), ONE, None),
    "fixed": (lambda s: fixed_dpsgd_event(s, 50, dataset_size=1000, batch_size=20), ONE, None),
    "truncated": (
        lambda s: truncated_dpsgd_event(
            s, 20, sampling_prob=0.1, num_examples=100, truncated_batch_size=15
        ),
        SPECIAL,
        COARSE,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("eps", [0.3, 4.0])
def test_calibrated_noise_is_within_the_budget_and_close_to_it(case, eps):
    make, relation, accountant = CASES[case]
    options = {"delta": 1e-5, "neighboring_relation": relation, "accountant_fn": accountant}
    noise = calibrate_noise_multiplier(make, epsilon=eps, **options)
    assert eps - 1e-3 <= epsilon(make(noise), **options) <= eps


def test_an_event_that_rdp_has_no_guess_for():
    def make(noise):
        return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(noise, (0.0, 1.0), (0.5, 0.5))

    coarse = functools.partial(PLDAccountant, value_discretization_interval=1e-2)
    options = {"delta": 1e-3, "neighboring_relation": ADD, "accountant_fn": coarse}
    noise = calibrate_noise_multiplier(make, epsilon=2.0, **options)
    assert 2.0 - 1e-3 <= epsilon(make(noise), **options) <= 2.0


def test_the_gaussian_has_its_closed_form():
    for relation, factor in [(ADD, 1), (ONE, 2)]:
        noise = calibrate_noise_multiplier(
            gaussian_event, epsilon=1.0, delta=1e-5, neighboring_relation=relation
        )
        exact = dp_accounting.get_sigma_gaussian(1.0, 1e-5)
        assert noise == pytest.approx(factor * exact, rel=1e-3) and noise >= factor * exact


@settings(max_examples=4)
@given(st.floats(0.2, 3), st.floats(0.05, 0.5), st.integers(1, 300), st.sampled_from([1e-4, 1e-7]))
def test_any_sensible_budget(eps, p, steps, delta):
    def make(noise):
        return dpsgd_event(noise, steps, sampling_prob=p)

    options = {"delta": delta, "neighboring_relation": ADD}
    noise = calibrate_noise_multiplier(make, epsilon=eps, **options)
    assert eps - 1e-3 <= epsilon(make(noise), **options) <= eps


def test_ten_thousand_steps_take_under_two_seconds_and_repeats_are_cached():
    def make(noise):
        return dpsgd_event(noise, 10_000, sampling_prob=1024 / 60_000)

    def timed():
        begun = time.process_time()
        noise = calibrate_noise_multiplier(make, epsilon=3.0, delta=1e-5, neighboring_relation=ADD)
        return noise, time.process_time() - begun

    first, seconds = timed()
    again, repeated = timed()
    assert first == again
    assert seconds < 2.0
    assert repeated < 0.3  # the guess by RDP is not cached
    assert first == pytest.approx(2.49, abs=0.01)


def test_the_largest_batch_size():
    def make(batch):
        return dpsgd_event(1.5, 30, sampling_prob=batch / 500)

    options = {"delta": 1e-5, "neighboring_relation": ADD, "accountant_fn": COARSE}
    found = calibrate_batch_size(make, num_examples=500, epsilon=2.0, **options)
    assert epsilon(make(found), **options) <= 2.0 < epsilon(make(found + 1), **options)
    assert calibrate_batch_size(make, num_examples=500, epsilon=500.0, **options) == 500
    with pytest.raises(FixArgumentsError, match="not even a batch of one example"):
        calibrate_batch_size(make, num_examples=500, epsilon=1e-4, **options)


@pytest.mark.parametrize("accountant", [None, COARSE, RdpAccountant])
def test_the_largest_number_of_steps(accountant):
    def make(steps):
        return dpsgd_event(3.0, steps, sampling_prob=0.2)

    options = {"delta": 1e-5, "neighboring_relation": ADD, "accountant_fn": accountant}
    found = calibrate_iterations(make, epsilon=1.5, **options)
    assert epsilon(make(found), **options) <= 1.5 < epsilon(make(found + 1), **options)
    assert calibrate_iterations(make, epsilon=1.5, most=7, **options) == 7
    with pytest.raises(FixArgumentsError, match="not even a single step"):
        calibrate_iterations(lambda t: gaussian_event(0.5, t), epsilon=1.0, **options)


def test_an_epsilon_that_is_never_reached_allows_all_steps():
    def make(steps):
        return gaussian_event(1.0, steps)

    options = {"delta": 1e-3, "neighboring_relation": ADD, "most": 25_552_178}
    assert calibrate_iterations(make, epsilon=1e9, **options) == 25_552_178


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 60))
def test_the_largest_number_that_fits(last, most, guess):
    asked = []

    def fits(k):
        asked.append(k)
        assert 1 <= k <= most
        return k <= last

    assert largest_that_fits(fits, most, guess) == min(last, most)
    assert len(set(asked)) <= 16


def test_the_search_takes_logarithmic_time_without_a_guess():
    asked = []
    assert largest_that_fits(lambda k: asked.append(k) or k <= 1023, 1 << 40) == 1023
    assert len(asked) < 25
    assert largest_that_fits(lambda k: True, (1 << 40) - 1) == (1 << 40) - 1


@pytest.mark.parametrize("target", [1.0 + k / 16 for k in range(12)])
def test_a_run_states_no_more_than_its_noise_was_calibrated_for(target):
    """Calibration draws its own samples, which differ from those of what a run states."""

    def make(noise):
        return balls_in_bins_event(noise, 4, cycle_length=2)

    options = {"delta": 0.05, "neighboring_relation": ADD}
    noise = calibrate_noise_multiplier(make, epsilon=target, **options)
    assert epsilon(make(noise), **options) <= target


def test_events_bounded_by_sampling():
    def make(noise):
        return balls_in_bins_event(noise, 8, cycle_length=4, strategy=(1.0, 0.5))

    options = {"delta": 1e-2, "neighboring_relation": ADD}
    noise = calibrate_noise_multiplier(
        make, epsilon=1.5, monte_carlo=MonteCarlo(20_000, 1e-4, seed=3), **options
    )
    cost = epsilon(make(noise), monte_carlo=MonteCarlo(20_000, 1e-4, seed=4), **options)
    assert 1.3 < cost < 1.6
    with pytest.raises(FixArgumentsError, match="use calibrate_noise_multiplier"):
        calibrate_iterations(
            lambda t: balls_in_bins_event(1.0, t, cycle_length=4), epsilon=1.0, **options
        )


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"delta": 0.0}, {"delta": 1.0}, {"tolerance": 0}]
)
def test_wrong_input(wrong):
    right = {"epsilon": 1.0, "delta": 1e-5, "neighboring_relation": ADD}
    with pytest.raises(FixArgumentsError, match=next(iter(wrong))):
        calibrate_noise_multiplier(gaussian_event, **{**right, **wrong})


def test_budgets_that_noise_cannot_meet():
    options = {"epsilon": 1.0, "delta": 1e-5, "neighboring_relation": ADD}
    with pytest.raises(FixArgumentsError, match="is met with almost no noise"):
        calibrate_noise_multiplier(lambda s: dpsgd_event(s, 3, sampling_prob=0.0), **options)
    with pytest.raises(FixArgumentsError, match="is not met with any noise"):
        calibrate_noise_multiplier(lambda s: dp_accounting.NonPrivateDpEvent(), **options)
