"""`bevel tune`: the price before it starts, the search, the grid, and wrong usage."""

import json

import pytest
from searches import of_trials

from bevel.cli import dispatch
from bevel.cli.tune import score_name, shown_score

RATE = "optimizer.learning_rate=log(0.01,1)"


@pytest.mark.parametrize(
    "metric, score, name, shown",
    [
        ("test_accuracy", 0.5, "test_accuracy", "test_accuracy 0.5"),
        ("test_rmse", -0.5, "negative_test_rmse", "test_rmse 0.5"),
        ("test_loss", None, "negative_test_loss", "test_loss nan"),
    ],
)
def test_a_metric_keeps_its_sign_under_its_name(metric, score, name, shown):
    """A lower error has a higher score, which must not be released as the error."""
    assert (score_name(metric), shown_score(metric, score)) == (name, shown)


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


def test_a_dry_run_of_a_grid_shows_the_price_of_all_trials(config, capsys):
    assert tune(config, "--space", "optimizer.momentum=one_of(0,0.9)", "--grid", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "with tuning, 3 for one trial alone" in shown and "Dry run" in shown


@pytest.mark.parametrize("shape", ["0.1", "1e-1"])
def test_a_shape_is_any_number(config, capsys, shape):
    assert tune(config, "--space", RATE, "--dry-run", "--distribution", shape) == 0
    assert "a negative binomial of shape 0.1 number of trials" in capsys.readouterr().out


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
        (("--space", RATE, "--grid", "--trials", "5"), "leave out --trials and --distribution"),
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
        (("--space", RATE, "--space", RATE), "has optimizer.learning_rate twice"),
        (("--space", "plan.delta=log(1e-6,1e-4)"), "one value holds for all trials"),
        (("--space", "plan.noise_multiplier=uniform(1,2)"), "follows from [plan] epsilon"),
        (("--space", "plan.steps=one_of(4,8)"), "settings that epsilon depends on"),
        (("--space", "optimizer.warmup_steps=one_of(0,4)"), "use fewer warm-up steps"),
        (("--space", RATE, "--distribution", "1.2.3"), "the shape of a truncated negative"),
        (("--space", RATE, "--grid"), "has infinitely many values"),
        (("--space", "optimizer.momentum=one_of(0,0)", "--grid"), "has a value twice"),
    ],
)
def test_mistakes_are_named(config, capsys, words, message):
    assert tune(config, *words, "--dry-run") == 1
    assert message in capsys.readouterr().err
