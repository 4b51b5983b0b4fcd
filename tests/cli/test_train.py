"""A config is trained to its end, in as many runs as it takes."""

import json
import os
import re
import signal

import numpy as np
import pytest

from bevel.accounting.rounding import shown_epsilon
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
    assert f"epsilon {shown_epsilon(last['epsilon'])} at delta 0.001" in spent


def test_another_plan_in_the_same_folder_is_refused(config_file, reports, capsys):
    assert main(["train", str(config_file), "--plan.steps=2"]) == 0
    assert main(["train", str(config_file), "--plan.steps=3"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("bevel: ")
    assert "[plan] steps: 2 in the run, 3 in the config. Its epsilon holds" in printed
    assert not re.search("[0-9a-f]{16}", printed)


def test_a_changed_budget_is_named_by_its_key(config_file, tmp_path, reports, capsys):
    given = ["train", str(config_file), "--quiet", "--plan.noise-multiplier=none"]
    assert main([*given, "--plan.epsilon=3"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main([*given, "--plan.epsilon=2"]) == 1
    said = "contains another run: [plan] epsilon: 3.0 in the run, 2.0 in the config. Its"
    assert said in capsys.readouterr().err
    with np.load(tmp_path / "points.npz") as file:
        arrays = dict(file)
    arrays |= {name: arrays[name][1:] for name in ("x_train", "y_train")}
    np.savez(tmp_path / "points.npz", **arrays)
    assert main([*given, "--plan.epsilon=3"]) == 1
    assert (
        "run (with the same settings, but with more or fewer records or users): "
        in capsys.readouterr().err
    )


def test_json_has_released_values_only_and_people_read_standard_error(
    config_file, tmp_path, reports, capsys
):
    with np.load(tmp_path / "points.npz") as file:
        arrays = dict(file)
    arrays["x_train"][:30] = np.nan
    np.savez(tmp_path / "points.npz", **arrays)
    assert main(["train", str(config_file), "--json"]) == 0
    printed = capsys.readouterr()
    start, *checkpoints, end = map(json.loads, printed.out.splitlines())
    assert start == {"event": "start", "steps": 4, "epsilon": None, "delta": None}
    released = tmp_path / "run" / "released"
    lines = [json.loads(x) for x in (released / "metrics.jsonl").read_text().splitlines()]
    assert checkpoints == [{"event": "checkpoint"} | line for line in lines]
    report = {"report": f"{tmp_path / 'run'}/report.html"}
    assert end == {"event": "end", "status": "complete"} | lines[-1] | report
    assert "reading the data ..." in printed.err
    assert "warning (not private): " in printed.err and "are not finite" in printed.err
    assert all("finite" not in path.read_text() for path in released.glob("*.json*"))
    assert max(map(len, printed.err.splitlines()[:-1])) <= 80


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(data)\n", "my_model.py, line 1: expected ':'"),
        ("\n1 / 0\n", "raised ZeroDivisionError at my_model.py, line 2: division by zero"),
        (
            "def build(data):\n    return data.no\n",
            "raised AttributeError at my_model.py, line 2: ",
        ),
    ],
)
def test_a_mistake_in_a_model_file_is_named_with_its_line(text, said, config_file, capsys):
    model = config_file.parent / "my_model.py"
    model.write_text(text)
    assert (
        main(["train", str(config_file), "--model.kind=auto", f"--model.module={model}:build"]) == 1
    )
    printed = capsys.readouterr().err
    assert said in printed and "Traceback" not in printed


def test_a_value_that_does_not_work_is_named_with_its_line(config_file, capsys):
    config_file.write_text(config_file.read_text().replace("steps = 4", "steps = -4"))
    line = config_file.read_text().splitlines().index("steps = -4") + 1
    assert main(["train", str(config_file)]) == 1
    said = f"bevel: {config_file}, line {line}: [plan] steps=-4: pass an integer of at least 1."
    assert capsys.readouterr().err.strip() == said


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
    said = "[optimizer] learning_rate: 0.5 in the run, 0.25 in the config"
    assert said in capsys.readouterr().err
    assert main([*first, "--model.init-seed=5"]) == 1
    assert "[model] init_seed: 0 in the run, 5 in the config" in capsys.readouterr().err
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
