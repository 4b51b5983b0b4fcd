import math
from decimal import Decimal

import dp_accounting
import hypothesis
import pytest
from hypothesis import strategies as st

from bevel.report.guarantee import ending, guarantee, rounded_up, shown_epsilon, spent_of
from bevel.report.run_files import read_run


def words(run):
    said = guarantee(run, spent_of(run))
    facts = [f"{name}: {value}" for name, value in said.facts]
    return "\n".join([said.claim, *said.meaning, *facts, *said.assumptions, *said.warnings])


def test_says_unit_relation_cost_budget_and_what_it_assumes(by_hand):
    run = read_run(by_hand())
    text, spent = words(run), spent_of(run)
    assert f"({shown_epsilon(spent.epsilon)}, 1e-05)-differentially private" in text
    assert "one example of the training set, added or removed" in text
    assert "Budget fixed beforehand: epsilon 8 at delta 1e-05" in text
    assert "the guarantee is the budget that was fixed beforehand: epsilon 8" in text
    assert "Tuning is excluded" in text and "this one, which is the only one" in text
    assert not guarantee(run, spent).warnings


@pytest.mark.parametrize(
    ("relation", "changed"),
    [("REPLACE_ONE", "any other"), ("REPLACE_SPECIAL", "one that contributes nothing")],
)
def test_users_and_other_relations_have_their_own_words(by_hand, relation, changed):
    run = read_run(by_hand(unit="user", relation=relation))
    text = words(run)
    assert "all examples of one user" in text and changed in text
    assert "under one user id" in text and "How many users" in text


def test_all_runs_of_a_ledger_count(by_hand):
    run = read_run(by_hand(runs=("tuning", "by hand")))
    assert "all 2 of the ledger, together: tuning, by hand" in words(run)


def test_without_a_ledger_or_a_delta_nothing_is_claimed(by_hand):
    folder = by_hand(delta=None, limited=False)
    assert "no delta was fixed" in words(read_run(folder))
    (folder / "ledger.jsonl").unlink()
    text = words(read_run(folder))
    assert "no ledger beside it" in text and "differentially private" not in text


def test_without_noise_nothing_is_protected(by_hand):
    run = read_run(by_hand(events=[dp_accounting.NonPrivateDpEvent()], limited=False))
    assert "No noise was added: nothing is protected." in words(run)


def test_nothing_charged_is_nothing_released(by_hand):
    assert "Nothing was charged so far" in words(read_run(by_hand(runs=())))


@pytest.mark.parametrize(
    ("changed", "warning"),
    [
        ({"key_is_secret": False}, "known seed"),
        ({"data": {"units": 100_000}}, "not below one over"),
        ({"status": "ended by the callback"}, "the guarantee is the budget"),
    ],
)
def test_what_breaks_the_claim_is_a_warning(by_hand, changed, warning):
    run = read_run(by_hand(**changed))
    (found,) = guarantee(run, spent_of(run)).warnings
    assert warning in found


def test_says_how_a_run_ended(by_hand):
    run = read_run(by_hand(status="running"))
    assert "still running, or it was stopped" in ending(run)


@hypothesis.given(st.floats(1e-6, 1e9), st.integers(2, 6))
def test_shown_numbers_are_never_below_the_true_ones(value, digits):
    shown = Decimal(rounded_up(value, digits))
    assert shown >= Decimal(value)
    assert shown <= Decimal(value) * (1 + Decimal(10) ** (1 - digits))


def test_infinity_and_nothing_are_shown_as_such():
    assert shown_epsilon(math.inf) == "∞" and shown_epsilon(0.0) == "0"
