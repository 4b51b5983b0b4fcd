"""A search releases the best trial alone, is charged once, and cannot be drawn again."""

import json
import math
import shutil

import numpy as np
import pytest
import searches
import training_runs
from searches import of_trials, search

from bevel.accounting import Budget, Ledger, epsilon, event_from_json
from bevel.accounting.rounding import shown_epsilon
from bevel.errors import FixArgumentsError, RestoreCheckpointError, RestoreLedgerError, StopRunError
from bevel.report import write_report
from bevel.shipping import export
from bevel.training import Trainer, load
from bevel.tuning import OneOf, Price, TrialCount, selection_event
from bevel.tuning.spaces import drawn_settings


@pytest.fixture(name="fits")
def fixture_fits(monkeypatch):
    """Records the folder of every call of `fit`."""
    calls, real = [], Trainer.fit

    def recorded(self, *args, **kwargs):
        calls.append(kwargs["folder"].name)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "fit", recorded)
    return calls


def charges(ledger):
    lines = [json.loads(line)["entry"] for line in ledger.read_text().splitlines()]
    return [entry for entry in lines if entry["kind"] == "charge"]


def test_the_best_trial_is_released_alone_and_charged_once(tmp_path, monkeypatch):
    of_trials(monkeypatch, 3)
    folder = tmp_path / "search"
    result = search(folder)
    scores = json.loads((folder / "private/scores.json").read_text())
    best = max(scores, key=lambda number: float(scores[number]))
    assert len(scores) == 3 and result.score == float(scores[best])
    theirs = load(folder / f"private/trials/{best}", like=training_runs.params())
    assert training_runs.same_bits(result.params, theirs.params)
    assert training_runs.same_bits(
        load(folder / "released", like=theirs.params).params, result.params
    )
    (charge,) = charges(folder / "released/ledger.jsonl")
    plan = searches.config().make()
    event = selection_event(plan.dp_event, TrialCount(3.0))
    assert event_from_json(charge["event"]) == event
    settings = {"delta": searches.DELTA, "neighboring_relation": "ADD_OR_REMOVE_ONE"}
    assert result.epsilon == epsilon(event, **settings)
    assert result.epsilon_of_one_trial == epsilon(plan.dp_event, **settings) < result.epsilon
    assert Ledger.read(folder / "released/ledger.jsonl").spent().epsilon == result.epsilon


def test_what_is_released_does_not_depend_on_the_other_trials(tmp_path, monkeypatch):
    """The same best trial gives the same bytes, whatever its number and that of the trials."""
    of_trials(monkeypatch, 1)
    alone = tmp_path / "alone/search"
    search(alone)
    crowded = tmp_path / "crowded/search"
    shutil.copytree(alone / "private", crowded / "private")
    trials = crowded / "private/trials"
    (trials / "0").rename(trials / "2")
    scores = json.loads((alone / "private/scores.json").read_text())
    found = {"0": "-1e9", "1": "-inf", "2": scores["0"], "3": "-2e9"}
    (crowded / "private/scores.json").write_text(json.dumps(found))
    shutil.copytree(alone / "released", crowded / "released")
    shutil.rmtree(crowded / "released/checkpoints")
    (crowded / "released/run.json").unlink()
    of_trials(monkeypatch, 4)
    real = drawn_settings
    monkeypatch.setattr(
        "bevel.tuning.search.drawn_settings", lambda space, seed, n: real(space, seed, abs(n - 2))
    )
    search(crowded)

    def files(folder):
        return {
            path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    assert files(crowded / "released") == files(alone / "released")


def test_a_search_that_fails_goes_on_with_the_same_trials_at_no_further_cost(
    tmp_path, monkeypatch, fits
):
    folder, seen = tmp_path / "search", []
    of_trials(monkeypatch, 3)

    def failing(params):
        seen.append(params)
        if len(seen) == 2:
            raise OSError("the disk is gone")
        return searches.score(params)

    with pytest.raises(OSError, match="the disk is gone"):
        search(folder, scored=failing)
    secrets = (folder / "private/secrets.json").read_bytes()
    before = charges(folder / "released/ledger.jsonl")
    assert len(before) == 1 and not (folder / "released/run.json").exists()
    result = search(folder, scored=failing)
    assert fits == ["0", "1", "1", "2"]  # the first is not trained again, the second goes on
    assert charges(folder / "released/ledger.jsonl") == before
    assert (folder / "private/secrets.json").read_bytes() == secrets
    again = search(folder, scored=failing)
    assert len(fits) == 4 and training_runs.same_bits(again.params, result.params)
    assert again.settings == result.settings


def test_a_search_killed_at_any_write_is_charged_once_and_draws_once(tmp_path, monkeypatch):
    """Fails at the first, second, ... write of the search itself, and starts it again."""
    from bevel.tuning import search_folder

    of_trials(monkeypatch, 2)
    real, left = search_folder.write_atomically, [0]

    def failing(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        real(*args, **kwargs)

    monkeypatch.setattr(search_folder, "write_atomically", failing)
    folder, drawn = tmp_path / "search", set()
    for write in range(1, 9):
        left[0] = write
        try:
            search(folder)
        except KeyboardInterrupt:
            drawn.add((folder / "private/secrets.json").read_bytes())
            assert not (folder / "released/run.json").exists()
            left[0] = 2 if write > 4 else 0  # again, at the next write
            continue
        break
    left[0] = 0
    result = search(folder)
    assert len(drawn) == 1 and len(charges(folder / "released/ledger.jsonl")) == 1
    assert result.score == max(
        float(s) for s in json.loads((folder / "private/scores.json").read_text()).values()
    )


def test_the_number_of_trials_and_the_settings_come_from_the_saved_secret(tmp_path, monkeypatch):
    numbers = []
    real = TrialCount.draw
    monkeypatch.setattr(
        TrialCount, "draw", lambda self, seed: numbers.append((seed, real(self, seed))) or 1
    )
    for name in ("one", "two"):
        search(tmp_path / name)
        (tmp_path / name / "released/run.json").unlink()
        search(tmp_path / name)
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]


@pytest.mark.full
def test_another_search_of_the_same_name_is_refused_and_another_name_is_charged(
    tmp_path, monkeypatch
):
    of_trials(monkeypatch, 1)
    ledger, folder = tmp_path / "ledger.jsonl", tmp_path / "search"
    budget = Budget(50.0, searches.DELTA)
    options = searches.options(ledger=ledger, budget=budget)
    first = search(folder, options=options)
    shutil.rmtree(folder)
    with pytest.raises(FixArgumentsError, match="A search in a new folder is a new search"):
        search(folder, options=options)
    search(folder, options=searches.options(ledger=ledger, budget=budget, name="second"))
    assert len(charges(ledger)) == 2
    assert Ledger.read(ledger).spent().epsilon > first.epsilon


def test_a_budget_that_does_not_allow_the_search_is_an_error_before_anything(tmp_path, fits):
    options = searches.options(budget=Budget(0.1, searches.DELTA))
    with pytest.raises(StopRunError, match="Nothing was charged"):
        search(tmp_path / "search", options=options)
    assert not fits and not charges(tmp_path / "search/released/ledger.jsonl")


def test_nan_is_the_lowest_score_and_is_not_drawn_again(tmp_path, monkeypatch, fits):
    of_trials(monkeypatch, 2)
    values = iter([math.nan, -100.0])
    result = search(tmp_path / "search", scored=lambda _: next(values))
    assert result.score == -100.0 and fits == ["0", "1"]
    of_trials(monkeypatch, 1)
    result = search(tmp_path / "nan", scored=lambda _: math.nan)
    assert result.score is None and result.params is not None


@pytest.mark.parametrize("score", ["0.9", None, math.inf, np.zeros(2)])
def test_a_score_is_a_number(tmp_path, monkeypatch, score):
    of_trials(monkeypatch, 1)
    with pytest.raises(FixArgumentsError, match="return a number, higher for better models"):
        search(tmp_path / "search", scored=lambda _: score)


def test_no_trial_at_all_is_a_result_of_a_poisson_number(tmp_path, monkeypatch):
    of_trials(monkeypatch, 0)
    result = search(tmp_path / "search", distribution="poisson")
    assert result.best is None and result.params is None and not result.settings
    assert len(charges(tmp_path / "search/released/ledger.jsonl")) == 1


@pytest.mark.parametrize(
    "change, name",
    [
        ({"expected_trials": 4.0}, "trials"),
        ({"space": {"rate": OneOf(0.1, 1.0)}}, "space"),
        ({"distribution": "logarithmic"}, "trials"),
    ],
)
def test_a_search_that_is_changed_is_refused(tmp_path, monkeypatch, change, name):
    of_trials(monkeypatch, 1)
    search(tmp_path / "search")
    with pytest.raises(RestoreCheckpointError, match="has the result of another search"):
        search(tmp_path / "search", **change)  # whose price is another
    (tmp_path / "search/released/run.json").unlink()
    with pytest.raises(RestoreCheckpointError, match=f"other values of .*{name}"):
        search(tmp_path / "search", **change)


def test_what_is_released_does_not_show_when_the_best_trial_ran(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)
    folder = tmp_path / "search"
    search(folder)
    before = (folder / "released/run.json").read_bytes()
    path = folder / "private/trials/0/released/run.json"
    other = {"commit": "older", "versions": {}, "surroundings": {}, "changes": [{"step": 1}]}
    path.write_text(json.dumps(json.loads(path.read_text()) | other))
    (folder / "released/run.json").unlink()
    search(folder)
    assert (folder / "released/run.json").read_bytes() == before


def test_trials_do_not_change_between_starts(tmp_path, monkeypatch):
    """What is searched may differ from trial to trial, but nothing else."""
    of_trials(monkeypatch, 1)

    def killed(_):
        raise KeyboardInterrupt

    def started(momentum, scored=searches.score):
        fixed = {"optimizer": {"momentum": momentum}, "mesh": {"axes": momentum}}
        return search(tmp_path / "search", scored=scored, settings_of=lambda s: s | fixed)

    with pytest.raises(KeyboardInterrupt):
        started(0.9, killed)
    with pytest.raises(RestoreCheckpointError, match=r"other values of optimizer\.momentum"):
        started(0.5)
    assert started(0.9).settings


def test_what_is_released_does_not_show_which_runs_were_charged_meanwhile(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)
    ledger = tmp_path / "ledger.jsonl"
    options = searches.options(ledger=ledger, budget=Budget(50.0, searches.DELTA))

    def scored(params):
        training_runs.fit(
            tmp_path / "other", options=searches.options(ledger=ledger, budget=options.budget)
        )
        return searches.score(params)

    result = search(tmp_path / "search", scored=scored, options=options)
    (line,) = (tmp_path / "search/released/metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["epsilon"] == result.epsilon < Ledger.read(ledger).spent().epsilon


def test_other_data_and_missing_records_are_refused(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)
    folder = tmp_path / "search"
    search(folder)
    (folder / "released/run.json").unlink()
    data = training_runs.data()
    with pytest.raises(RestoreCheckpointError, match="began with other data"):
        search(folder, data=data | {"y": 1 - data["y"]})
    kept = (folder / "released/ledger.jsonl").read_bytes()
    (folder / "released/ledger.jsonl").unlink()
    with pytest.raises(RestoreLedgerError, match="this search was charged in it"):
        search(folder)
    (folder / "released/ledger.jsonl").write_bytes(kept)
    (folder / "private/secrets.json").unlink()
    with pytest.raises(RestoreCheckpointError, match="the number of trials would be drawn again"):
        search(folder)


def test_settings_that_change_privacy_are_charged_at_their_most_expensive(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)
    space = searches.SPACE | {"noise_multiplier": OneOf(4.0, 1.5, 8.0)}
    result = search(tmp_path / "search", space=space)
    event = selection_event(searches.config(noise_multiplier=1.5).make().dp_event, TrialCount(3.0))
    settings = {"delta": searches.DELTA, "neighboring_relation": "ADD_OR_REMOVE_ONE"}
    assert result.epsilon == epsilon(event, **settings)


def test_reports_and_exports_count_the_search(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)
    folder = tmp_path / "search"
    result = search(folder)
    page = write_report(folder).read_text()
    assert "private selection: the best of a geometric number of trials, 3 on average" in page
    assert shown_epsilon(result.epsilon) in page and "for one trial alone" in page
    statement = json.loads((export(folder, tmp_path / "model") / "privacy.json").read_text())
    assert (
        statement["epsilon"] == pytest.approx(result.epsilon) and statement["tuning"] == "nothing"
    )
    trial = folder / "private/trials/0"
    assert "nothing can be claimed for this run" in write_report(trial).read_text()
    with pytest.raises(FixArgumentsError, match="nothing of a trial may be released"):
        export(trial, tmp_path / "trial")


def test_a_folder_of_a_run_is_refused(tmp_path):
    training_runs.fit(tmp_path / "run")
    with pytest.raises(FixArgumentsError, match="has a training run"):
        search(tmp_path / "run")


def test_a_delta_is_needed(tmp_path):
    with pytest.raises(FixArgumentsError, match="the delta of the search is not known"):
        search(tmp_path / "search", options=training_runs.options())


def test_a_search_with_an_infinite_price_is_refused(tmp_path):
    with pytest.raises(FixArgumentsError, match="has too little noise for it"):
        search(tmp_path / "search", expected_trials=10_000, distribution="poisson")


@pytest.mark.parametrize("distribution", ["poisson", 1e3])
def test_a_number_that_cannot_be_drawn_is_refused(tmp_path, monkeypatch, distribution):
    """By Rényi divergences it may have a price, but floating point would always draw the same."""
    monkeypatch.setattr("bevel.tuning.search.price_of_search", lambda *_: Price(1.0, 0.5, 1e-3))
    with pytest.raises(FixArgumentsError, match="fewer trials"):
        search(tmp_path / "search", expected_trials=10_000, distribution=distribution)


def test_make_trainer_returns_a_trainer(tmp_path):
    with pytest.raises(FixArgumentsError, match="make_trainer returned a dict"):
        search(tmp_path / "search", make=lambda settings: settings)


def test_a_trial_that_went_on_with_fresh_noise_is_run_again(tmp_path, monkeypatch, fits):
    of_trials(monkeypatch, 1)
    attempts = iter([1, 0])
    monkeypatch.setattr("bevel.tuning.search.attempt_of", lambda _: next(attempts, 0))
    search(tmp_path / "search")
    assert fits == ["0", "0"]
