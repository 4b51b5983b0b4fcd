"""A result is read from the released half of a search."""

import optax
import pytest
import searches
import training_runs
from searches import of_trials, search

from bevel.accounting import Budget, Ledger
from bevel.accounting.rounding import shown_epsilon
from bevel.execution_plan import BandMFConfig
from bevel.report import write_report
from bevel.training import Trainer
from bevel.tuning import OneOf, Price
from bevel.tuning.result import read_result


@pytest.mark.full
def test_a_result_needs_nothing_private(tmp_path, monkeypatch):
    of_trials(monkeypatch, 2)
    result = search(tmp_path / "search")
    (tmp_path / "search/released").rename(tmp_path / "released")
    (tmp_path / "copy").mkdir()
    (tmp_path / "released").rename(tmp_path / "copy/released")
    price = Price(2.0, 1.0, 1e-5)
    found = read_result(tmp_path / "copy", training_runs.params(), price)
    assert training_runs.same_bits(found.params, result.params)
    assert (found.settings, found.score) == (result.settings, result.score)
    assert (found.epsilon, found.epsilon_of_one_trial) == (2.0, 1.0)


def test_the_charge_covers_the_steps_of_the_longest_trial(tmp_path, monkeypatch):
    """The costliest trial may take fewer: here its event differs by a rounding error."""

    def make(settings):
        steps, bands = settings["steps"], (1.0, 0.5, 0.25, 0.1)
        config = BandMFConfig(steps, steps / 6, bands, num_examples=48, noise_multiplier=1.5)
        return Trainer(config=config, loss_fn=training_runs.loss, optimizer=optax.sgd(0.5))

    of_trials(monkeypatch, 1)
    monkeypatch.setattr("bevel.tuning.search.drawn_settings", lambda *_: {"steps": 8})
    search(tmp_path / "search", make=make, space={"steps": OneOf(7, 8)})
    assert "has no charge" not in write_report(tmp_path / "search").read_text()


def test_a_report_explains_a_search_without_trials(tmp_path, monkeypatch):
    of_trials(monkeypatch, 0)
    search(tmp_path / "search", distribution="poisson")
    page = write_report(tmp_path / "search").read_text()
    assert "The random number of trials of this private search was 0" in page


def test_epsilon_with_tuning_leaves_out_other_runs_of_the_ledger(tmp_path, monkeypatch):
    of_trials(monkeypatch, 1)
    ledger, budget = tmp_path / "ledger.jsonl", Budget(50.0, searches.DELTA)
    options = searches.options(ledger=ledger, budget=budget)
    training_runs.fit(tmp_path / "other", options=options)
    result = search(tmp_path / "search", options=options)
    page = write_report(tmp_path / "search").read_text()
    assert Ledger.read(ledger).spent().epsilon > result.epsilon
    assert f"{shown_epsilon(result.epsilon)}, and " in page
