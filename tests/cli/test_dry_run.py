"""A dry run says what would happen, and changes nothing."""

import json

import pytest

from bevel.cli import main
from bevel.training import trial as trials
from bevel.training.data import ArraySource


@pytest.fixture(autouse=True)
def fixture_quick(monkeypatch):
    monkeypatch.setattr(trials, "SECONDS", 0.0)


def snapshot(root):
    return {
        str(path): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in sorted(root.rglob("*"))
    }


def dry_run(capsys, config_file, *words, code=0):
    before = snapshot(config_file.parent)
    assert main(["train", str(config_file), "--dry-run", "--json", *words]) == code
    assert snapshot(config_file.parent) == before
    return json.loads(capsys.readouterr().out)


def test_a_new_run_is_described_and_nothing_is_written(config_file, capsys, monkeypatch):
    def refuse(self, indices):
        raise AssertionError("a record was read")

    monkeypatch.setattr(ArraySource, "read", refuse)
    found = dry_run(capsys, config_file)
    assert not (config_file.parent / "run").exists()
    assert found["folder"] | {"path": ""} == {
        "path": "", "status": "new", "step": 0, "reason": None, "ledger": None, "spent": None,
    }  # fmt: skip
    assert found["promise"]["unit"] == "example"
    assert found["promise"]["noise_multiplier"] == 1.0
    assert found["promise"]["delta"] == 1e-3
    assert 0 < found["promise"]["epsilon"] < 10
    assert (found["steps"]["total"], found["steps"]["left"]) == (4, 4)
    assert found["steps"]["padded_sizes"][0] >= found["steps"]["expected_batch_size"] == 16
    assert found["parameters"] == 10
    assert found["devices"]["mesh"] == {"data": 4, "model": 2}
    assert found["device_bytes"] > 0
    assert found["seconds"]["steps_left"] == pytest.approx(4 * found["seconds"]["step"])
    # Parameters, momentum and average of 10 floats each, and the counters.
    assert 120 <= found["disk"]["checkpoint_bytes"] < 250
    assert found["disk"]["bytes"] == 4 * found["disk"]["checkpoint_bytes"]


def test_the_text_fits_80_columns(config_file, capsys):
    assert main(["train", str(config_file), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    words = " ".join(printed.split())
    assert "nothing is trained on, charged or written" in words
    assert "for one example of the training set, added or removed" in words
    assert "a new run" in words


def test_a_run_that_is_there_resumes_is_complete_or_is_refused(config_file, reports, capsys):
    assert main(["train", str(config_file)]) == 0
    capsys.readouterr()
    found = dry_run(capsys, config_file)
    assert (found["folder"]["status"], found["folder"]["step"]) == ("complete", 4)
    assert found["folder"]["spent"] > 0
    assert found["steps"]["left"] == 0
    refused = dry_run(capsys, config_file, "--plan.steps=5", code=1)
    assert "plan.steps 4 -> 5" in refused["folder"]["reason"]
    rate = "--optimizer.learning-rate=0.25"
    assert main(["train", str(config_file), "--dry-run", rate]) == 1
    assert "--accept optimizer.learning_rate" in " ".join(capsys.readouterr().out.split())
    accepted = dry_run(capsys, config_file, rate, "--accept", "optimizer.learning_rate")
    assert accepted["folder"]["status"] == "complete"


def test_a_run_without_privacy_promises_nothing(config_file, capsys):
    text = config_file.read_text().replace("noise_multiplier = 1.0", 'mechanism = "none"')
    config_file.write_text(text)
    found = dry_run(capsys, config_file)
    assert found["promise"]["epsilon"] is None and found["promise"]["clip_norm"] is None
    assert main(["train", str(config_file), "--dry-run"]) == 0
    assert "so nothing is protected" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "promise"),
    [
        ("--run.test-seed=1", "test_seed makes the noise known, so nothing is protected"),
        ("--plan.epsilon=2", "epsilon 2"),
    ],
)
def test_the_promise_is_in_words(config_file, capsys, word, promise):
    words = ["train", str(config_file), "--dry-run", word]
    if "epsilon" in word:
        text = config_file.read_text().replace("noise_multiplier = 1.0", "epsilon = 3.0")
        config_file.write_text(text)
    assert main(words) == 0
    assert promise in " ".join(capsys.readouterr().out.split())
