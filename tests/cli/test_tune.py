"""`bevel tune`: the price before it starts, the search, the grid, and wrong usage."""

import json

import pytest
from searches import of_trials

from bevel.cli import dispatch

RATE = "optimizer.learning_rate=log(0.01,1)"


@pytest.fixture(name="config")
def fixture_config(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(
        "[plan]\nbatch_size = 64\nsteps = 4\nepsilon = 3.0\ndelta = 1e-4\n"
        "[model]\nkind = 'linear'\n"
        f"[run]\nfolder = '{tmp_path / 'search'}'\ncheckpoint_every = 4\n"
    )
    return path


def tune(config, *words):
    return dispatch.main(["tune", str(config), *words])


def test_a_dry_run_shows_the_price_and_changes_nothing(config, capsys, tmp_path):
    assert tune(config, "--space", RATE, "--dry-run", "--trials", "5") == 0
    shown = capsys.readouterr().out
    assert "a geometric number of trials, 5 on average" in shown
    assert "with tuning" in shown and "for one trial alone" in shown and "Dry run" in shown
    cost = float(shown.partition("epsilon ")[2].partition(" ")[0])
    assert 2.9 < cost <= 3.0  # the noise of a trial is calibrated to the search
    assert not (tmp_path / "search").exists()


@pytest.mark.full
def test_the_best_trial_is_released(config, capsys, tmp_path, monkeypatch):
    of_trials(monkeypatch, 2)
    assert tune(config, "--space", RATE, "--space", "plan.clip_norm=one_of(0.5,2)") == 0
    shown = capsys.readouterr().out
    assert "best settings: {'optimizer.learning_rate'" in shown and "test_accuracy" in shown
    record = json.loads((tmp_path / "search/released/run.json").read_text())
    assert set(record["selected"]["settings"]) == {"optimizer.learning_rate", "plan.clip_norm"}
    assert (tmp_path / "search/released/report.html").exists()


@pytest.mark.full
def test_a_grid_is_charged_in_full(config, capsys, tmp_path):
    words = ("--space", "optimizer.momentum=one_of(0,0.9)", "--grid")
    assert tune(config, *words, "--plan.epsilon=none", "--plan.noise_multiplier=2") == 0
    shown = capsys.readouterr().out
    assert shown.count("test_accuracy") == 2 and "with tuning" in shown
    assert (tmp_path / "search/1/released/report.html").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        ((), "--space is missing"),
        (("--space", RATE, "--spaces"), "unknown option --spaces"),
    ],
)
def test_wrong_usage(config, capsys, words, message):
    assert tune(config, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (("--space", "learning rate"), "write KEY=log(low,high)"),
        (("--space", "data.name=one_of(a,b)"), "all trials have the same data and model"),
        (("--space", "optimizer.momentum=log(a,b)"), "write two numbers in log(...)"),
        (("--space", RATE, "--distribution", "fixed"), "almost as much as releasing all of them"),
        (("--space", "optimizer.rate=log(1,2)"), "there is no option --optimizer.rate"),
        (("--space", RATE, "--run.test-seed=3"), "all trials would have the same noise"),
    ],
)
def test_mistakes_are_named(config, capsys, words, message):
    assert tune(config, *words, "--dry-run") == 1
    assert message in capsys.readouterr().err
