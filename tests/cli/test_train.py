"""A config is trained to its end, in as many runs as it takes."""

import json
import os
import signal

import numpy as np
import pytest

from bevel.cli import main
from bevel.cli.job import Job


def last_line(path):
    return json.loads(path.read_text().splitlines()[-1])


@pytest.mark.full
def test_ctrl_c_saves_and_the_next_start_goes_on(
    config_file, tmp_path, reports, capsys, monkeypatch
):
    evaluate = Job.evaluate

    def interrupted(self, params):
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self, params)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "evaluate", interrupted)
        assert main(["train", str(config_file)]) == 130
    assert "Traceback" not in capsys.readouterr().err
    metrics = tmp_path / "run" / "released" / "metrics.jsonl"
    assert last_line(metrics)["step"] < 4
    assert not reports

    assert main(["train", str(config_file)]) == 0
    last = last_line(metrics)
    assert last["step"] == 4
    assert 0 <= last["test_accuracy"] <= 1
    assert reports == [(str(tmp_path / "run"), None, False)]
    assert f"{tmp_path / 'run'}/report.html" in capsys.readouterr().out
    assert main(["spent", str(tmp_path / "run")]) == 1  # no budget, so no delta
    assert "delta" in capsys.readouterr().err
    assert main(["spent", str(tmp_path / "run"), "--delta", "1e-3"]) == 0
    spent = capsys.readouterr().out
    assert "steps up to 4, attempts 1" in spent
    assert f"epsilon {last['epsilon']:.4g} at delta 0.001" in spent


def test_another_plan_in_the_same_folder_is_refused(config_file, reports, capsys):
    assert main(["train", str(config_file), "--plan.steps=2"]) == 0
    assert main(["train", str(config_file), "--plan.steps=3"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("bevel: ")
    assert "plan.steps 2 -> 3" in printed


def test_other_data_are_refused_and_a_learning_rate_is_accepted_by_name(
    config_file, tmp_path, reports, capsys
):
    first = ["train", str(config_file)]
    assert main(first) == 0
    charged = (tmp_path / "run" / "released" / "ledger.jsonl").read_bytes()
    other = tmp_path / "other.npz"
    with np.load(tmp_path / "points.npz") as file:
        arrays = dict(file)
    np.savez(other, **arrays)
    assert main([*first, f"--data.source={other}"]) == 0  # the same data, elsewhere
    arrays["x_train"][7] += 5
    np.savez(other, **arrays)
    assert main([*first, f"--data.source={other}"]) == 1  # though the run is finished
    printed = capsys.readouterr().err
    assert "the data differ" in printed and "another run" in printed
    rate = "--optimizer.learning-rate=0.25"
    assert main([*first, rate]) == 1
    assert "optimizer.learning_rate 0.5 -> 0.25" in capsys.readouterr().err
    assert main([*first, "--model.init-seed=5"]) == 1
    assert "model.init_seed 0 -> 5" in capsys.readouterr().err
    assert main([*first, rate, "--accept", "optimizer.learning_rate"]) == 0
    assert main([*first, "--accept", "plan"]) == 1
    assert "cannot change within a run" in capsys.readouterr().err
    assert (tmp_path / "run" / "released" / "ledger.jsonl").read_bytes() == charged


@pytest.mark.parametrize("override", ["--plan.stepz=2", "--plan.steps=two", "--run.folder"])
def test_a_wrong_override_is_wrong_usage(config_file, override):
    assert main(["train", str(config_file), override]) == 2


def test_a_misspelled_key_is_named(config_file, capsys):
    config_file.write_text(config_file.read_text().replace("noise_multiplier", "noise_multiplyer"))
    assert main(["train", str(config_file)]) == 1
    assert "Did you mean 'noise_multiplier'?" in capsys.readouterr().err


def test_a_missing_file_is_named(capsys):
    assert main(["train", "none.toml"]) == 1
    assert capsys.readouterr().err == "bevel: there is no config at none.toml: check the path.\n"
    assert main(["train"]) == 2
