"""The numbers behind the pictures: every canary is counted, and the promise is that of the plan."""

import numpy as np
import pytest

from bevel.accounting import trade_off_curve
from bevel.auditing.audit_figures import histogram, promise, roc
from bevel.execution_plan import DPSGDConfig, PlanSecrets

RNG = np.random.default_rng(0)
HELD_IN = RNG.random(5_000) < 0.5
SCORES = RNG.normal(size=5_000) + HELD_IN


def test_every_canary_is_in_one_bin():
    far = np.append(SCORES, [1e9, -1e9])
    bins = histogram(far, np.append(HELD_IN, [True, False]))
    assert len(bins["edges"]) == 41 and bins["edges"] == sorted(bins["edges"])
    assert sum(bins["held_in"]) == HELD_IN.sum() + 1
    assert sum(bins["held_out"]) == (~HELD_IN).sum() + 1
    assert bins["edges"][-1] < 10  # the two far ones do not stretch the bins
    assert bins["held_in"][-1] >= 1


def test_equal_scores_have_bins():
    bins = histogram(np.zeros(4), np.array([True, False, True, False]))
    assert sum(bins["held_in"]) == sum(bins["held_out"]) == 2


def test_points_of_the_roc_are_rates_of_thresholds():
    points = roc(SCORES, HELD_IN)
    fpr, tpr = np.array(points["fpr"]), np.array(points["tpr"])
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert len(fpr) <= 200 and (np.diff(fpr) >= 0).all() and (np.diff(tpr) >= 0).all()
    thresholds = np.sort(SCORES)[::-1]
    for x, y in list(zip(fpr, tpr, strict=True))[1:-1:20]:
        above = [t for t in thresholds if np.mean(SCORES[~HELD_IN] >= t) == x]
        assert any(np.mean(SCORES[HELD_IN] >= t) == y for t in above)


def test_the_promise_is_the_trade_off_curve_of_the_plan():
    plan = DPSGDConfig.default(100, 50, 2, noise_multiplier=1.0).make(
        secrets=PlanSecrets.for_tests(0)
    )
    points = promise(plan, 1.0, 1e-5)
    _, tpr = trade_off_curve(
        plan.dp_event,
        neighboring_relation=plan.neighboring_relation,
        fpr=np.array(points["fpr"]),
    )
    np.testing.assert_allclose(points["tpr"], np.maximum(tpr, points["fpr"]))


@pytest.mark.parametrize("epsilon", [0.0, 1.0, np.inf])
def test_without_a_plan_the_promise_is_that_of_epsilon_and_delta(epsilon):
    points = promise(None, epsilon, 1e-3)
    fpr, tpr = np.array(points["fpr"]), np.array(points["tpr"])
    assert ((tpr >= 0) & (tpr <= 1)).all() and tpr[0] == 1e-3
    if epsilon < 10:
        growth = np.exp(epsilon)
        assert (tpr <= growth * fpr + 1e-3 + 1e-12).all()
        assert (1 - fpr <= growth * (1 - tpr) + 1e-3 + 1e-12).all()
