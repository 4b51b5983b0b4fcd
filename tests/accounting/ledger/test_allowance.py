"""A budget stops a run before it would be exceeded."""

import pytest

from bevel.accounting import balls_in_bins_event, dpsgd_event, epsilon, gaussian_event
from bevel.accounting.ledger import Budget, Ledger, allowance
from bevel.errors import StopRunError

ADD = "ADD_OR_REMOVE_ONE"
DELTA = 1e-5


def cost(event, delta=DELTA):
    return epsilon(event, delta=delta, neighboring_relation=ADD)


@pytest.fixture
def evaluations(monkeypatch):
    """Records every call of an accountant."""
    calls = []
    real = allowance.epsilon_of

    def counted(*args, coarse=False):
        calls.append(coarse)
        return real(*args, coarse=coarse)

    monkeypatch.setattr(allowance, "epsilon_of", counted)
    return calls


def opened(path, epsilon, delta=DELTA):
    return Ledger.open(path, unit="example", relation=ADD, budget=Budget(epsilon, delta))


def test_a_run_takes_all_the_steps_that_fit_and_no_more(tmp_path, evaluations):
    step, most = dpsgd_event(2.0, 1, sampling_prob=0.1), 20
    budget = cost(dpsgd_event(2.0, most, sampling_prob=0.1))
    with opened(tmp_path / "l", budget) as ledger:
        run = ledger.run("run", plan="plan", key="a" * 64)
        for number in range(most):
            run.charge(number, number + 1, step)
        before = (tmp_path / "l").read_bytes()
        assert len(evaluations) < 20 and evaluations.count(False) < 10  # not one for each step
        with pytest.raises(StopRunError, match=r"steps 20 to 21 .* Nothing was charged"):
            run.charge(most, most + 1, step)
        assert (tmp_path / "l").read_bytes() == before
        assert ledger.spent().epsilon <= budget


def test_asking_about_a_charge_that_replaces_another_allows_nothing_else(tmp_path):
    fewer, more = gaussian_event(2.5), gaussian_event(2.0)
    with opened(tmp_path / "l", 1.01 * cost(more)) as ledger:
        one = ledger.run("one", plan="plan", key="a" * 64)
        two = ledger.run("two", plan="plan", key="b" * 64)
        one.charge(0, 5, fewer)
        assert one.affords(0, 10, more)  # in place of `fewer`, but it is not charged
        assert not two.affords(0, 10, more)
        for run, attempt in ((two, 0), (one, 1)):
            with pytest.raises(StopRunError):
                run.charge(0, 10, more, attempt=attempt)
            assert one.affords(0, 10, more)
        one.charge(0, 10, more)
        with pytest.raises(StopRunError):
            two.charge(0, 5, fewer)
        assert ledger.spent().epsilon <= ledger.terms.budget.epsilon


def test_the_budget_covers_all_runs(tmp_path):
    budget = cost(gaussian_event(4.0, 3))
    with opened(tmp_path / "l", budget) as ledger:
        ledger.run("one", plan="plan", key="a" * 64).charge(0, 2, gaussian_event(4.0, 2))
    with opened(tmp_path / "l", budget) as ledger:
        run = ledger.run("two", plan="plan", key="b" * 64)
        with pytest.raises(StopRunError, match="run 'two' would spend epsilon"):
            run.charge(0, 2, gaussian_event(4.0, 2))
        run.charge(0, 1, gaussian_event(4.0))
        with pytest.raises(StopRunError):
            ledger.run("three", plan="plan", key="c" * 64).charge(0, 1, gaussian_event(50.0))


def test_another_attempt_counts_against_the_budget(tmp_path):
    with opened(tmp_path / "l", cost(gaussian_event(4.0, 3))) as ledger:
        run = ledger.run("run", plan="plan", key="a" * 64)
        run.charge(0, 3, gaussian_event(4.0, 3))
        with pytest.raises(StopRunError):
            run.charge(2, 3, gaussian_event(4.0), attempt=1)


def test_a_restated_range_is_counted_once(tmp_path, evaluations):
    with opened(tmp_path / "l", cost(gaussian_event(2.0))) as ledger:
        run = ledger.run("run", plan="plan", key="a" * 64)
        for stop, noise in [(1, 8.0), (2, 4.0), (3, 2.0)]:
            run.charge(0, stop, gaussian_event(noise))
        with pytest.raises(StopRunError):
            run.charge(0, 4, gaussian_event(1.9))
        assert ledger.spent().epsilon == cost(gaussian_event(2.0))


def test_events_bounded_by_sampling_are_accounted_one_by_one(tmp_path, evaluations):
    event = balls_in_bins_event(3.0, 4, cycle_length=4)
    with opened(tmp_path / "l", 1.01 * cost(event, 0.1), 0.1) as ledger:
        ledger.run("run", plan="plan", key="a" * 64).charge(0, 4, event)
        assert len(evaluations) == 1
        with pytest.raises(StopRunError):
            ledger.run("two", plan="plan", key="b" * 64).charge(0, 4, event)
