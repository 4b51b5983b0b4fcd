"""Trade-off curves: close to the closed form of the Gaussian, and never below it."""

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from bevel.accounting import balls_in_bins_event, dpsgd_event, gaussian_event, trade_off_curve
from bevel.accounting.monte_carlo import MonteCarlo
from bevel.errors import FixArgumentsError

ADD = {"neighboring_relation": "ADD_OR_REMOVE_ONE"}


@pytest.mark.parametrize(
    "noise, relation, mu", [(1.0, "ADD_OR_REMOVE_ONE", 1), (2.0, "REPLACE_ONE", 1)]
)
def test_the_gaussian_has_its_closed_form(noise, relation, mu):
    fpr, tpr = trade_off_curve(gaussian_event(noise), neighboring_relation=relation)
    truth = norm.cdf(norm.ppf(fpr) + mu / 1)
    assert np.all(tpr >= truth - 1e-9)
    assert tpr == pytest.approx(truth, abs=2e-3)


def test_the_curve_of_a_sampled_mechanism():
    rates = np.array([0.0, 1e-3, 0.1, 0.5, 1.0])
    fpr, tpr = trade_off_curve(dpsgd_event(1.0, 10, sampling_prob=0.1), fpr=rates, **ADD)
    assert np.array_equal(fpr, rates) and tpr[-1] == 1.0
    assert np.all(np.diff(tpr) >= 0) and np.all(tpr >= fpr) and np.all(tpr <= 1)
    _, looser = trade_off_curve(
        dpsgd_event(1.0, 10, sampling_prob=0.1), fpr=rates, accountant_fn=RdpAccountant, **ADD
    )
    assert np.all(looser >= tpr - 1e-9)


def test_without_noise_the_attacker_always_wins():
    _, tpr = trade_off_curve(gaussian_event(0.0), fpr=np.array([0.0, 0.5]), **ADD)
    assert tpr.tolist() == [1.0, 1.0]


def test_a_curve_by_sampling_is_above_the_true_curve():
    event = balls_in_bins_event(1.0, 1, cycle_length=1)  # one bin: the plain Gaussian
    rates = np.array([0.01, 0.1, 0.5])
    _, tpr = trade_off_curve(event, fpr=rates, monte_carlo=MonteCarlo(100_000, 1e-4, seed=1), **ADD)
    truth = norm.cdf(norm.ppf(rates) + 1)
    assert np.all(tpr >= truth) and tpr == pytest.approx(truth, abs=0.03)


def test_a_curve_by_sampling_needs_no_settings(monkeypatch):
    """By default with a number of samples that does not depend on the rates."""
    monkeypatch.setattr("bevel.accounting.trade_off.SAMPLED_DELTA", 1e-2)
    event = balls_in_bins_event(1.0, 1, cycle_length=1)
    rates = np.array([0.1, 0.5])
    _, tpr = trade_off_curve(event, fpr=rates, **ADD)
    assert np.all(tpr >= norm.cdf(norm.ppf(rates) + 1)) and np.all(tpr < 1)


@pytest.mark.parametrize("fpr", [[], [[0.1]], [-0.1], [1.1], [np.nan]])
def test_invalid_rates_are_refused(fpr):
    with pytest.raises(FixArgumentsError, match="rates between 0 and 1"):
        trade_off_curve(gaussian_event(1.0), fpr=np.array(fpr), **ADD)
