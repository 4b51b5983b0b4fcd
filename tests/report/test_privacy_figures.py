from decimal import Decimal

import dp_accounting
import numpy as np
import pytest

from bevel.accounting import balls_in_bins_event, dpsgd_event, trade_off_curve
from bevel.report import privacy_figures as figures
from bevel.report.guarantee import spent_of
from bevel.report.run_files import read_run


def test_epsilon_has_every_checkpoint_and_the_budget(by_hand, metric_lines):
    run = read_run(by_hand(metrics=metric_lines))
    spent, budget = figures.epsilon_over_steps(run, spent_of(run)).series
    assert list(spent.x) == [2, 4, 6, 8, 10] and list(spent.y) == [0.4, 0.8, 1.2, 1.6, 2.0]
    assert list(budget.y) == [8, 8]


def test_a_second_attempt_is_a_line_of_its_own(by_hand, metric_lines):
    again = {**metric_lines[2], "attempt": 1, "epsilon": 3.0}
    run = read_run(by_hand(metrics=[*metric_lines, again]))
    first, second, _ = figures.epsilon_over_steps(run, spent_of(run)).series
    assert list(first.x) == [2, 4, 6, 8, 10] and list(second.x) == [6]


def test_the_trade_off_curve_is_that_of_what_was_charged(by_hand):
    run = read_run(by_hand())
    spent = spent_of(run)
    drawn, points = figures.trade_off(spent)
    curve, budget, _ = drawn.series
    event = dpsgd_event(1.1, 10, sampling_prob=0.01)
    fpr = np.asarray(curve.x)
    truth = trade_off_curve(event, neighboring_relation="ADD_OR_REMOVE_ONE", fpr=fpr)[1]
    np.testing.assert_allclose(curve.y, truth, rtol=1e-6)
    assert (np.asarray(curve.y) <= np.asarray(budget.y) + 1e-12).all()
    for rate, shown in points:
        assert 0 <= float(shown) - np.interp(float(rate), fpr, truth) < 2e-4


@pytest.mark.full
def test_events_without_a_common_accountant_get_the_bound_of_their_sum(by_hand):
    kinds = [dp_accounting.ZCDpEvent(0.1), dpsgd_event(2.0, 1, sampling_prob=0.1)]
    run = read_run(by_hand(events=kinds, relation="ADD_OR_REMOVE_ONE", limited=False))
    spent = spent_of(run)
    tpr, exact = figures.attack_bound(spent, np.asarray([0.0, 0.1, 1.0]))
    assert exact == (len(spent.events) == 1)
    assert tpr[0] < 1e-3 and tpr[2] == 1


def test_the_implied_bound_is_the_largest_that_both_inequalities_allow():
    epsilon, delta = 1.3, 1e-2
    fpr = np.linspace(0, 1, 11)
    bound = figures.implied_bound(epsilon, delta, fpr)
    candidates = np.linspace(0, 1, 200_001)
    for rate, found in zip(fpr, bound, strict=True):
        allowed = (candidates <= np.exp(epsilon) * rate + delta) & (
            1 - rate <= np.exp(epsilon) * (1 - candidates) + delta
        )
        assert found == pytest.approx(candidates[allowed].max(), abs=1e-5)


def test_there_is_no_curve_without_a_bound(by_hand):
    run = read_run(by_hand(events=[dp_accounting.NonPrivateDpEvent()], limited=False))
    assert figures.trade_off(spent_of(run)) is None and figures.trade_off(None) is None


def test_events_bounded_by_monte_carlo_use_the_bound_of_epsilon_and_delta():
    from bevel.accounting.ledger.header import LedgerHeader
    from bevel.accounting.ledger.spent import Spent

    event = balls_in_bins_event(1.0, iterations=4, cycle_length=4)
    terms = LedgerHeader("example", "ADD_OR_REMOVE_ONE")
    fpr = np.linspace(0, 1, 5)
    tpr, exact = figures.attack_bound(Spent(1.0, 1e-3, terms, (), (event,)), fpr)
    np.testing.assert_array_equal(tpr, figures.implied_bound(1.0, 1e-3, fpr))
    assert not exact


def test_a_guess_by_the_curve_is_bounded_between_its_points_too(by_hand):
    spent = spent_of(read_run(by_hand()))
    fpr = np.asarray([0.0, 0.05, 0.95, 1.0])  # the best guess is far from all of them
    fine = np.linspace(0, 1, 2001)
    event = dpsgd_event(1.1, 10, sampling_prob=0.01)
    curve = {"neighboring_relation": "ADD_OR_REMOVE_ONE"}
    tpr = trade_off_curve(event, fpr=fpr, **curve)[1]
    truth = (1 + (trade_off_curve(event, fpr=fine, **curve)[1] - fine).max()) / 2
    assert Decimal(float(truth)) <= figures.best_guess(spent, fpr, tpr)
    _, tight = figures.attack_bound(spent, fpr)
    assert tight and "A guess at even odds is right at most" in figures.trade_off(spent)[0].caption
    assert "in real-number arithmetic" in figures.trade_off(spent)[0].caption


def test_descriptions_round_epsilon_and_the_bound_up(by_hand, metric_lines):
    metric_lines[-1]["epsilon"] = 2.00001
    run = read_run(by_hand(metrics=metric_lines))
    spent = spent_of(run)
    assert "to 2.001 at step 10" in figures.epsilon_over_steps(run, spent).svg
    drawn, _ = figures.trade_off(spent)
    assert "no attack exceeds this: from 0.0001 at" in drawn.svg  # the TPR at 0 is below
