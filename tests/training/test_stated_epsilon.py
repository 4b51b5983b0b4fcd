"""The epsilon that runs state at releases, for the plans of every kind."""

import collections
import threading

import plans
import pytest
import training_runs as runs

from bevel.accounting import gaussian_event
from bevel.accounting.epsilon_curve import TOLERANCE
from bevel.accounting.ledger import Budget
from bevel.accounting.ledger import release_epsilon as release_epsilon_module
from bevel.accounting.ledger.event_json import event_to_json
from bevel.accounting.ledger.spent import epsilon_of
from bevel.accounting.ledger.totals import event_counts
from bevel.execution_plan import PlanSecrets
from bevel.training import run_ledger, stated_epsilon
from bevel.training.metrics_files import read_lines
from bevel.training.releaser import THREAD
from bevel.training.run_ledger import RunLedger
from bevel.training.stated_epsilon import StatedEpsilon

DELTA = 1e-4
SECRETS = PlanSecrets.for_tests(3)
SAMPLED = ("balls_in_bins", "random_allocation")


@pytest.mark.parametrize("kind", plans.CONFIGS)
def test_it_is_never_below_what_was_spent_and_exact_at_the_end(kind):
    plan = plans.CONFIGS[kind].make(secrets=SECRETS)
    if plan.mechanism.bounded_by_sampling or plan.mechanism.noise_multiplier is None:
        pytest.skip("charged once for the whole run, or infinite")
    other = event_counts(event_to_json(gaussian_event(8.0)))
    stated, relation = StatedEpsilon(plan, 2), plan.neighboring_relation
    for others in (collections.Counter(), other):
        for steps in (1, 6, plan.iterations):
            counts = event_counts(event_to_json(plan.event_after(steps))) + others
            exact = epsilon_of(counts, DELTA, relation)
            found = stated.epsilon(counts, DELTA, steps)
            assert exact <= found <= exact + TOLERANCE, (kind, steps)
            if steps == plan.iterations:
                assert found == exact


def test_a_run_computes_its_epsilons_outside_of_its_own_thread(tmp_path, monkeypatch):
    seen = collections.Counter()

    def counted(module, name):
        real = getattr(module, name)

        def call(*args, **kwargs):
            seen[name, threading.current_thread().name.startswith(THREAD)] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    counted(release_epsilon_module, "epsilon")
    counted(stated_epsilon, "epsilon_of")
    counted(stated_epsilon, "release_epsilon")
    runs.fit(tmp_path / "run", options=runs.options(delta=1e-5))
    # Three releases before the last one, and the last: each prepared, and then stated.
    assert seen == {("release_epsilon", True): 6, ("epsilon_of", True): 2}
    lines = list(read_lines(tmp_path / "run" / "released" / "metrics.jsonl"))
    plan = runs.plan()
    for line in lines:
        exact = plan.epsilon(line["step"], delta=1e-5)
        assert exact <= line["epsilon"] <= exact + TOLERANCE
    assert lines[-1]["epsilon"] == exact


def test_without_a_folder_the_same_is_stated(tmp_path):
    shown = []
    for folder in (tmp_path / "run", None):
        options = runs.options(delta=1e-5)
        runs.fit(folder, options=options, callback=lambda state, line: shown.append(line))
    assert shown[:4] == shown[4:] and len(shown) == 8


def opened(path, **options):
    ledger = RunLedger(path, runs.plan(), "one", None, None, path.parent, **options)
    ledger.join(SECRETS.commitment)
    return ledger


def test_a_charge_of_another_run_after_the_preparation_is_included(tmp_path):
    ledger = opened(tmp_path / "ledger.jsonl")
    ledger.release(2, "a" * 32)
    assert ledger.epsilon(DELTA) > 0
    ledger.prepare(4, DELTA)
    alone = runs.plan().epsilon(4, delta=DELTA)
    other = ledger._ledger.run("two", plan="plan", key="b" * 64)
    other.charge(0, 1, gaussian_event(1.0))
    ledger.release(4, "b" * 32)
    exact, stated = ledger._ledger.spent(DELTA).epsilon, ledger.epsilon(DELTA)
    assert alone + 1 < exact <= stated <= exact + TOLERANCE
    ledger.close()


def test_a_preparation_writes_nothing(tmp_path):
    ledger = opened(tmp_path / "ledger.jsonl")
    before = (tmp_path / "ledger.jsonl").read_bytes()
    ledger.prepare(4, DELTA)
    ledger.prepare(4, None)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    assert ledger.epsilon(DELTA) == 0 and ledger.epsilon(None) is None
    ledger.close()


def test_what_is_stated_is_within_a_budget_that_is_reached_exactly(tmp_path):
    """The bound may be above the exact epsilon, which is not above the budget."""
    plan, path = runs.plan(), tmp_path / "ledger.jsonl"
    budget = Budget(plan.epsilon(4, delta=DELTA), DELTA)
    ledger = RunLedger(path, plan, "one", budget, None, tmp_path)
    ledger.join(SECRETS.commitment)
    assert ledger.affordable(0, 3) == 3 and ledger.affordable(0, 8) == 4
    ledger.release(4, "a" * 32)
    assert ledger._ledger.spent().epsilon <= ledger.epsilon(DELTA) <= budget.epsilon
    assert ledger.affordable(4, 8) == 4
    ledger.close()


def test_a_whole_plan_that_fits_takes_one_evaluation(tmp_path, monkeypatch):
    from bevel.accounting.ledger import allowance

    calls, real = [], allowance.epsilon_of
    monkeypatch.setattr(allowance, "epsilon_of", lambda *a, **k: calls.append(a) or real(*a, **k))
    plan = runs.plan()
    budget = Budget(plan.epsilon(delta=DELTA) + 0.1, DELTA)
    ledger = RunLedger(tmp_path / "ledger.jsonl", plan, "one", budget, None, tmp_path)
    ledger.join(SECRETS.commitment)
    for step in range(8):
        assert ledger.affordable(step, step + 1) == step + 1
        ledger.release(step + 1, "")
    assert len(calls) == 1
    ledger.close()


def test_a_failure_of_the_preparation_is_raised_in_the_thread_of_the_run(tmp_path, monkeypatch):
    def fail(*args):
        raise ArithmeticError("no epsilon")

    monkeypatch.setattr(run_ledger.RunLedger, "prepare", fail)
    with pytest.raises(ArithmeticError, match="no epsilon"):
        runs.fit(tmp_path / "run", options=runs.options(delta=1e-5))
