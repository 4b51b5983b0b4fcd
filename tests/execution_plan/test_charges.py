"""A ledger that is charged as planned has the epsilon of the plan."""

import pytest
from plans import CONFIGS, STEPS, plan

from bevel.accounting import Ledger
from bevel.errors import FixArgumentsError, StopRunError

CHARGED = ["dpsgd", "fixed", "bandmf", "blt"]


@pytest.mark.parametrize("name", CHARGED)
def test_a_ledger_that_is_charged_as_planned_has_the_epsilon_of_the_plan(name, tmp_path):
    made = plan(name)
    with Ledger.open(
        tmp_path / "ledger", unit=made.unit.name, relation=made.neighboring_relation
    ) as ledger:
        run = ledger.run("a", plan=made.fingerprint(), key=made.secrets.commitment)
        for step in range(STEPS):
            if run.charged_until <= step:
                run.charge(*made.charge(step, step + 1))
            if step == 4:
                middle = ledger.spent(1e-3).epsilon
        assert ledger.spent(1e-3).epsilon == pytest.approx(made.epsilon(delta=1e-3), rel=1e-9)
    ends = 5 if made.composes_by_step else made.mechanism.end_of_round(5)
    assert middle == pytest.approx(made.epsilon(ends, delta=1e-3), rel=1e-9)


def test_a_budget_covers_exactly_the_run_that_it_was_calibrated_for(tmp_path):
    made = CONFIGS["dpsgd"].calibrate(epsilon=2.0, delta=1e-3).make()
    relation = made.neighboring_relation
    with Ledger.open(tmp_path / "l", unit="example", relation=relation, budget=made.budget) as book:
        run = book.run("a", plan=made.fingerprint(), key=made.secrets.commitment)
        for step in range(STEPS):
            run.charge(*made.charge(step, step + 1))
        with pytest.raises(StopRunError, match="would spend"):
            run.charge(STEPS, STEPS + 1, made.event_after(1))


def test_what_is_bounded_by_sampling_is_charged_once():
    made = plan("balls_in_bins")
    assert made.charge(0, 1) == (0, STEPS, made.dp_event)
    assert made.charge(3, 4, begun=3) == (3, STEPS, made.event_after(STEPS - 3))


def test_an_attempt_that_begins_later_is_charged_for_its_own_steps():
    assert plan("dpsgd").charge(5, 7, begun=5).event == plan("dpsgd").event_after(2)
    assert plan("bandmf").charge(6, 7, begun=5) == (5, 8, plan("bandmf").event_after(3))
    assert plan("bandmf").charge(11, 12, begun=11).stop == STEPS


@pytest.mark.parametrize("steps", [(3, 3), (0, 13), (-1, 2)])
def test_charges_outside_the_run_are_refused(steps):
    with pytest.raises(FixArgumentsError, match="pass 0 <= begun <= first < stop <= 12"):
        plan("dpsgd").charge(*steps)
