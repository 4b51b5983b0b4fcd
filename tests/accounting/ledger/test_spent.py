"""What is spent: the cost of all charges of a ledger, composed."""

import collections
import dataclasses

import dp_accounting
import pytest

from bevel.accounting import (
    balls_in_bins_event,
    dpsgd_event,
    epsilon,
    fixed_dpsgd_event,
    gaussian_event,
    truncated_dpsgd_event,
)
from bevel.accounting.ledger import Budget, Ledger, event_to_json
from bevel.accounting.ledger.header import LedgerHeader
from bevel.accounting.ledger.spent import Spent, epsilon_of
from bevel.accounting.ledger.totals import event_counts
from bevel.accounting.rounding import shown_epsilon
from bevel.errors import FixArgumentsError

ADD, ONE = "ADD_OR_REMOVE_ONE", "REPLACE_ONE"


def cost(event, delta=1e-5, relation=ADD):
    return epsilon(event, delta=delta, neighboring_relation=relation)


def together(*events, delta=1e-5, relation=ADD):
    counts = sum((event_counts(event_to_json(e)) for e in events), collections.Counter())
    return epsilon_of(counts, delta, relation)


def test_an_empty_ledger_costs_nothing(tmp_path):
    with Ledger.open(tmp_path / "l", unit="example", relation=ADD) as ledger:
        assert ledger.spent(1e-5).epsilon == 0


@pytest.mark.parametrize("relation", [ADD, ONE])
def test_steps_charged_one_by_one_cost_what_the_run_costs(tmp_path, relation):
    step = dpsgd_event(1.1, 1, sampling_prob=0.02)
    with Ledger.open(tmp_path / "l", unit="example", relation=relation) as ledger:
        run = ledger.run("run", plan="plan", key="a" * 64)
        for number in range(40):
            run.charge(number, number + 1, step)
        run.charge(40, 100, dpsgd_event(1.1, 60, sampling_prob=0.02))
        spent = ledger.spent(1e-5)
    assert spent.epsilon == cost(dpsgd_event(1.1, 100, sampling_prob=0.02), relation=relation)


def test_runs_compose(tmp_path):
    first, second = dpsgd_event(1.1, 30, sampling_prob=0.02), gaussian_event(4.0, 2)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    with Ledger.open(tmp_path / "l", unit="user", relation=relation) as ledger:
        ledger.run("one", plan="plan", key="a" * 64).charge(0, 30, first)
        ledger.run("two", plan="other", key="b" * 64).charge(0, 2, second)
    spent = Ledger.read(tmp_path / "l").spent(1e-5)
    assert spent.epsilon == pytest.approx(cost(dp_accounting.ComposedDpEvent([first, second])))
    assert max(cost(first), cost(second)) < spent.epsilon < cost(first) + cost(second)


def test_a_restated_run_costs_what_its_last_event_costs(tmp_path):
    with Ledger.open(tmp_path / "l", unit="example", relation=ADD) as ledger:
        run = ledger.run("run", plan="plan", key="a" * 64)
        for steps in (2, 4, 6):
            run.charge(0, steps, gaussian_event(10.0 / steps))
        assert ledger.spent(1e-5).epsilon == cost(gaussian_event(10.0 / 6))


def test_events_without_a_common_accountant_share_delta():
    pld_only = truncated_dpsgd_event(
        2.0, 3, sampling_prob=0.1, num_examples=50, truncated_batch_size=9
    )
    rdp_only = fixed_dpsgd_event(2.0, 3, dataset_size=100, batch_size=7)
    parts = [cost(event, 5e-6, ONE) for event in (pld_only, rdp_only)]
    assert together(pld_only, rdp_only, relation=ONE) == pytest.approx(sum(parts))


def test_events_bounded_by_sampling_share_delta():
    bins = balls_in_bins_event(3.0, 4, cycle_length=4)
    halves = cost(bins, 0.05) + cost(gaussian_event(3.0), 0.05)
    assert together(bins, gaussian_event(3.0), delta=0.1) == pytest.approx(halves)
    assert together(bins, bins, delta=0.1) == pytest.approx(2 * cost(bins, 0.05))


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.NonPrivateDpEvent(),
        gaussian_event(0.0, 3),
        dpsgd_event(0.0, 3, sampling_prob=0.1),
        balls_in_bins_event(0.0, 4, cycle_length=4),
    ],
)
def test_no_noise_has_infinite_epsilon(event):
    assert together(event) == together(event, gaussian_event(3.0)) == float("inf")


def test_describe(tmp_path):
    budget = Budget(8, 1e-6)
    with Ledger.open(tmp_path / "l", unit="user", relation=ONE, budget=budget) as ledger:
        ledger.run("mnist", plan="plan-7", key="a" * 64).charge(0, 2, gaussian_event(4.0, 2))
        spent = ledger.spent()
    assert spent.delta == 1e-6
    assert spent.describe().splitlines() == [
        f"epsilon {shown_epsilon(spent.epsilon)} at delta 1e-06 spent so far, per user, "
        "under REPLACE_ONE",
        "budget: epsilon 8 at delta 1e-06",
        "run mnist: steps up to 2, attempts 1, plan plan-7",
        "This holds if you chose what to run, and when to stop, without looking at results.",
        "If such a choice depended on the data, the guarantee is the budget fixed beforehand: "
        "epsilon 8 at delta 1e-06.",
    ]


def test_no_text_says_less_than_was_spent():
    header = LedgerHeader("example", ONE, Budget(3.00000001, 1.0000001e-5))
    spent = Spent(2.00004, 1.0000001e-5, header, ())
    assert spent.describe().startswith("epsilon 2.001 at delta 1.00001e-05 spent so far")
    assert str(header.budget) == "epsilon 3.00001 at delta 1.00001e-05"
    infinite = dataclasses.replace(spent, epsilon=float("inf"))
    assert infinite.describe().startswith("epsilon inf at")


def test_without_a_budget_delta_is_needed(tmp_path):
    with Ledger.open(tmp_path / "l", unit="user", relation=ONE) as ledger:
        assert "fixed beforehand: there was none." in ledger.spent(1e-5).describe()
        with pytest.raises(FixArgumentsError, match=r"pass spent\(delta=...\)"):
            ledger.spent()
        with pytest.raises(FixArgumentsError, match="delta=2"):
            ledger.spent(2)
