"""What a plan allows an attacker: its curve, and curves above it that need no samples."""

import numpy as np
import pytest
from scipy import special

from bevel.accounting import trade_off_curve
from bevel.auditing.promise import (
    allowed_tpr,
    gaussian_envelope,
    limit_of,
    promised_delta,
    promised_epsilon,
    unamplified_mu,
)
from bevel.errors import FixArgumentsError
from bevel.execution_plan import DPSGDConfig, NonPrivateConfig, PlanSecrets

FPR = np.array([0.0, 1e-3, 0.1, 0.5, 1.0])


def plan_of(*arguments, **changed):
    config = DPSGDConfig.default(*arguments, noise_multiplier=1.0, **changed)
    return config.make(secrets=PlanSecrets.for_tests(0))


GAUSSIAN = plan_of(100, 100, 1)
BALLS = plan_of(100, 50, 4, sampling="balls_in_bins")
ALLOCATION = plan_of(100, 25, 8, sampling="random_allocation")


def test_the_envelope_of_a_gaussian_mechanism_is_its_epsilon():
    assert gaussian_envelope(GAUSSIAN, 1e-5) == pytest.approx(
        GAUSSIAN.epsilon(delta=1e-5), rel=0.02
    )


def test_the_envelope_of_a_plan_with_rare_uses_is_above_its_epsilon():
    rare = plan_of(1000, 10, 4)
    assert gaussian_envelope(rare, 1e-5) > rare.epsilon(delta=1e-5)


@pytest.mark.parametrize("plan", [BALLS, ALLOCATION])
def test_a_plan_with_monte_carlo_accounting_has_an_envelope_without_samples(plan):
    """Two uses of each unit: at most a Gaussian mechanism with mu of sqrt(2)."""
    assert unamplified_mu(plan) == pytest.approx(np.sqrt(2), rel=1e-6)
    tpr = allowed_tpr(plan, 3.0, 1e-2, FPR)
    assert (tpr <= special.ndtr(special.ndtri(FPR) + np.sqrt(2)) + 1e-9).all()
    assert (tpr <= np.exp(3) * FPR + 1e-2 + 1e-9).all()
    assert (tpr >= FPR).all()


def test_the_allowed_rates_are_the_trade_off_curve():
    relation = GAUSSIAN.neighboring_relation
    _, tpr = trade_off_curve(GAUSSIAN.dp_event, neighboring_relation=relation, fpr=FPR)
    np.testing.assert_array_equal(allowed_tpr(GAUSSIAN, 1.0, 1e-5, FPR), tpr)


def test_a_bound_below_the_promise_needs_no_envelope(monkeypatch):
    assert limit_of(None, 1e-5, 3.0, 2.0) == 3.0
    assert limit_of(GAUSSIAN, 1e-5, 3.0, 9.0) == gaussian_envelope(GAUSSIAN, 1e-5)


def test_the_promise_of_a_budget():
    config = DPSGDConfig.default(100, 100, 1).calibrate(epsilon=3, delta=1e-4)
    plan = config.make(secrets=PlanSecrets.for_tests(0))
    assert promised_delta(plan, None) == 1e-4 and promised_epsilon(plan, 1e-4) == 3
    assert promised_epsilon(plan, 1e-3) < 3


@pytest.mark.parametrize(
    ("plan", "delta", "message"),
    [
        (GAUSSIAN, None, "no budget to take delta from"),
        (GAUSSIAN, 0, "delta=0: pass a number between 0 and 1"),
        (GAUSSIAN, 1.0, "delta=1.0: pass a number"),
        (NonPrivateConfig(100, 10, 1).make(), 1e-5, "the plan adds no noise"),
    ],
)
def test_promises_that_cannot_be_audited(plan, delta, message):
    with pytest.raises(FixArgumentsError, match=message):
        promised_delta(plan, delta)
