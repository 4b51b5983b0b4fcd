"""`bevel audit` prints a bound or traces, and its exit code says whether the audit passed."""

import json
import stat

import jax
import numpy as np
import pytest

from bevel.auditing import read_audit
from bevel.cli import main

# At this significance, half of all audits of honest runs fail, so the seed is fixed.
SMALL = ["--canaries", "10", "--plan.batch_size=64", "--plan.steps=1", "--significance", "0.5"]
SMALL += ["--run.test_seed=1"]


@pytest.mark.parametrize("attack", ["every-step", "last-model"])
def test_a_config_is_audited(config_file, attack, capsys):
    assert main(["audit", str(config_file), *SMALL, "--attack", attack]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("audit PASSED")
    assert attack.replace("-", " ") in printed
    assert "10, of which" in printed and "at delta 0.001" in printed
    assert "sensitivity PASSED" in printed and "all files under released/" in printed


@pytest.mark.parametrize(
    ("model", "significance", "canaries"), [("linear", 0.5, 10), ("mlp", 0.05, 32)]
)
def test_by_default_there_are_fewer_canaries_than_places_for_them(
    model, significance, canaries, config_file, capsys
):
    """The linear model has 10 parameters, and there are 64 records."""
    given = ["audit", str(config_file), f"--model.kind={model}", *SMALL[2:4]]
    assert main([*given, f"--significance={significance}", "--run.test_seed=1"]) == 0
    assert f"canaries      {canaries}, of which" in capsys.readouterr().out


def test_audited_runs_are_kept_next_to_the_run(config_file, tmp_path, capsys):
    earlier = tmp_path / "run-audit" / "released"
    earlier.mkdir(parents=True)
    (earlier / "run.json").write_text("{}")
    arguments = ["audit", str(config_file), *SMALL]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    folder = tmp_path / "run-audit-2"
    assert printed == read_audit(folder)
    assert printed["sensitivity"]["passed"] and printed["traces"] == []
    assert stat.S_IMODE((folder / "private" / "audit.json").stat().st_mode) == 0o600
    released = [path.name for path in (folder / "released").rglob("*")]
    assert "ledger.jsonl" in released and "audit.json" not in released
    assert main([*arguments, "--folder", str(tmp_path / "run-audit")]) == 1
    assert "already holds a run, and an audit cannot resume" in capsys.readouterr().err


def test_a_violated_sensitivity_is_exit_code_1(config_file, monkeypatch, capsys):
    from bevel.training.private_step import PrivateStep

    honest = PrivateStep.clip

    def doubled(self, *arguments):
        sums, aux = honest(self, *arguments)
        return jax.tree.map(lambda x: 2 * x, sums), aux

    monkeypatch.setattr(PrivateStep, "clip", doubled)
    assert main(["audit", str(config_file), *SMALL]) == 1
    assert "sensitivity FAILED" in capsys.readouterr().out


def test_a_bound_above_the_promise_is_exit_code_1(config_file, monkeypatch, capsys):
    monkeypatch.setattr("bevel.auditing.run_audit.promised_epsilon", lambda plan, delta: -1.0)
    monkeypatch.setattr("bevel.auditing.promise.gaussian_envelope", lambda plan, delta: -1.0)
    assert main(["audit", str(config_file), *SMALL]) == 1
    assert capsys.readouterr().out.startswith("audit FAILED")


def test_a_run_folder_is_searched(config_file, tmp_path, reports, capsys):
    assert main(["train", str(config_file)]) == 0
    capsys.readouterr()
    assert main(["audit", str(tmp_path / "run")]) == 0
    assert "PASSED: no trace" in capsys.readouterr().out
    seed = (tmp_path / "run" / "private" / "secrets.json").read_text()
    (tmp_path / "run" / "released" / "notes.txt").write_text(seed)
    assert main(["audit", str(tmp_path / "run")]) == 1
    assert "notes.txt, byte" in capsys.readouterr().out
    assert main(["audit", str(tmp_path / "run"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["traces"][0]["file"] == "notes.txt"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--canaries", "2"], 1, "canaries is 2: too few"),
        (["--plan.mechanism=none"], 1, "mechanism is none, which protects nothing"),
        (["--canaries", "many"], 2, "invalid int value"),
    ],
)
def test_bad_options(config_file, arguments, code, message, capsys):
    assert main(["audit", str(config_file), *arguments]) == code
    assert message in capsys.readouterr().err


def test_options_of_a_config_with_a_folder(tmp_path, capsys):
    np.savez(tmp_path / "x.npz")
    assert main(["audit", str(tmp_path), "--plan.steps=3"]) == 2
    assert "is for configs" in capsys.readouterr().err
