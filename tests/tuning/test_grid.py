"""A grid releases and charges all of its trials."""

import json

import pytest
import searches
import training_runs

from bevel.accounting import Budget, Ledger, gaussian_event
from bevel.errors import FixArgumentsError, StopRunError
from bevel.report import write_report
from bevel.tuning import OneOf, charged_grid

SPACE = {"rate": OneOf(0.1, 1.0)}


def grid(folder, **changed):
    chosen = {"score": searches.score, "folder": folder, "options": searches.options()} | changed
    space = chosen.pop("space", SPACE)
    data, params = training_runs.data(), training_runs.params()
    return charged_grid(searches.make_trainer, space, data, params, **chosen)


@pytest.mark.full
def test_all_trials_are_released_and_charged(tmp_path):
    trials, price = grid(tmp_path / "grid")
    assert [trial.score for trial in trials] == sorted((t.score for t in trials), reverse=True)
    ledger = Ledger.read(tmp_path / "grid/ledger.jsonl")
    assert len(ledger.runs) == 2 and ledger.spent().epsilon == pytest.approx(price.epsilon)
    assert price.epsilon > price.epsilon_of_one_trial
    page = write_report(trials[0].folder).read_text()
    assert "a grid of 2 trials, all charged" in page and "for one trial alone" in page
    again, _ = grid(tmp_path / "grid")
    assert [trial.score for trial in again] == [trial.score for trial in trials]
    assert json.loads((trials[0].folder / "released/run.json").read_text())["ending"] == "complete"


def test_a_budget_that_does_not_allow_all_trials_is_an_error_before_anything(tmp_path):
    with pytest.raises(StopRunError, match="the 2 trials of the grid cost epsilon"):
        grid(tmp_path / "grid", options=searches.options(budget=Budget(0.1, searches.DELTA)))
    assert not (tmp_path / "grid").exists()


def test_scores_of_a_grid_are_public(tmp_path):
    with pytest.raises(FixArgumentsError, match="the scores of a grid are not charged"):
        grid(tmp_path / "grid", score_event=gaussian_event(1.0))
