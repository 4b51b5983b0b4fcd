import dp_accounting
import pytest

from bevel.accounting import dpsgd_event
from bevel.accounting.rounding import shown_epsilon
from bevel.report.guarantee import guarantee, is_claimed, spent_of
from bevel.report.run_files import read_run


def words(run):
    said = guarantee(run, spent_of(run))
    facts = [f"{name}: {value}" for name, value in said.facts]
    parts = [said.claim, *said.warnings, *said.definitions, *said.meaning, *said.arithmetic]
    return "\n".join([*parts, *facts, *said.assumptions])


def test_says_unit_relation_cost_budget_and_arithmetic(by_hand):
    run = read_run(by_hand())
    text, spent = words(run), spent_of(run)
    epsilon = shown_epsilon(spent.epsilon)
    claim = guarantee(run, spent).claim
    assert claim == (
        f"In real-number arithmetic, what was released is ({epsilon}, 1e-05)-differentially "
        "private for one example of the training set, added or removed."
    )
    assert "Budget fixed beforehand: ε = 8 at δ = 1e-05" in text
    assert "the guarantee is the budget that was fixed beforehand: ε = 8 at δ = 1e-05" in text
    assert "this one, the only one" in text and "Arithmetic: real numbers" in text
    assert "float32" in text and "Mironov 2012" in text
    assert not guarantee(run, spent).warnings


def test_says_what_it_assumes(by_hand):
    run = read_run(by_hand())
    text = "\n".join(guarantee(run, spent_of(run)).assumptions)
    for said in (
        "sums and noise are real numbers",
        "not in the ledger are not counted",
        "Each person's data is in one example",
        "The number of examples, the settings of the run",
        "nobody else can read the private half",
        "could watch the machine or the folder",
        "contain no times",
        "restored an earlier state of both the folder and the ledger",
        "metrics were computed on data outside the training set",
    ):
        assert said in text, said
    for gone in ("how long steps took is taken", "tensorboard_raw_not_private", "raw.jsonl"):
        assert gone not in text


@pytest.mark.parametrize(
    ("relation", "changed"),
    [("REPLACE_ONE", "any other"), ("REPLACE_SPECIAL", "one that contributes nothing")],
)
def test_users_and_other_relations_have_their_own_words(by_hand, relation, changed):
    run = read_run(by_hand(unit="user", relation=relation))
    text = words(run)
    assert "all examples of one user" in text and changed in text
    assert "under one user id" in text and "The number of users" in text


def test_all_runs_of_a_ledger_count(by_hand):
    run = read_run(by_hand(runs=("tuning", "by hand")))
    assert "all 2 of the ledger, together: tuning, by hand" in words(run)


def test_without_a_ledger_or_a_delta_nothing_is_claimed(by_hand):
    folder = by_hand(delta=None, limited=False)
    assert "no δ was fixed" in words(read_run(folder))
    (folder / "released" / "ledger.jsonl").unlink()
    text = words(read_run(folder))
    assert "its ledger is missing" in text and "differentially private" not in text


def test_a_ledger_that_does_not_know_the_run_claims_nothing(by_hand, metric_lines):
    run = read_run(by_hand(metrics=metric_lines, runs=("another",)))
    text = words(run)
    assert "no charge for what this run released" in text and "Nothing can be claimed" in text
    assert "differentially private" not in text and not is_claimed(run, spent_of(run))


def test_nothing_is_claimed_for_a_ledger_that_was_rolled_back(by_hand, metric_lines):
    run = read_run(by_hand(metrics=metric_lines, steps=4))
    assert "restored from an older copy" in words(run) and not is_claimed(run, spent_of(run))


def test_without_noise_nothing_is_protected(by_hand):
    run = read_run(by_hand(events=[dp_accounting.NonPrivateDpEvent()], limited=False))
    text = words(run)
    assert "Nothing is protected: some of what was released had no noise" in text
    assert "differentially private" not in text and "of the time" not in text


def test_a_known_seed_claims_nothing(by_hand):
    text = words(read_run(by_hand(key_is_secret=False)))
    assert "Nothing is protected: the noise of this run comes from a known seed" in text
    assert "differentially private" not in text and "of the time" not in text


def test_nothing_charged_is_nothing_released(by_hand):
    text = words(read_run(by_hand(runs=())))
    assert "Nothing was charged so far" in text and "differentially private" not in text


def test_an_epsilon_of_zero_is_a_claim_if_something_was_charged(by_hand):
    run = read_run(by_hand(events=[dpsgd_event(100, 1, sampling_prob=1e-3)], limited=False))
    spent, text = spent_of(run), words(run)
    assert spent.epsilon == 0
    assert "is (0, 1e-05)-differentially private" in text and "at most 50.1%" in text


def test_without_a_budget_choices_have_no_guarantee(by_hand):
    assert "fixed beforehand, and there was none" in words(read_run(by_hand(limited=False)))


@pytest.mark.parametrize(
    ("changed", "warning"),
    [
        ({"key_is_secret": False}, "known seed"),
        ({"data": {"units": 100_000}}, "not below one over"),
        ({"ending": "ended by the callback"}, "the guarantee is the budget"),
    ],
)
def test_what_breaks_the_claim_is_a_warning(by_hand, changed, warning):
    run = read_run(by_hand(**changed))
    (found,) = guarantee(run, spent_of(run)).warnings
    assert warning in found
