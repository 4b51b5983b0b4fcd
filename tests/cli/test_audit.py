"""`bevel audit` prints a bound or traces, and its exit code says whether the audit passed."""

import numpy as np
import pytest

from bevel.cli import main

SMALL = ["--canaries", "10", "--plan.batch_size=64", "--plan.steps=1"]


@pytest.mark.parametrize("attack", ["every-step", "last-model"])
def test_a_config_is_audited(config_file, attack, capsys):
    arguments = ["--attack", attack, "--significance", "0.5"]
    assert main(["audit", str(config_file), *SMALL, *arguments]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("audit PASSED")
    assert attack.replace("-", " ") in printed
    assert "10, of which" in printed and "at delta 0.001" in printed


def test_a_bound_above_the_promise_is_exit_code_1(config_file, monkeypatch, capsys):
    monkeypatch.setattr("bevel.auditing.run_audit.promised_epsilon", lambda plan, delta: -1.0)
    monkeypatch.setattr("bevel.auditing.run_audit.gaussian_envelope", lambda plan, delta: -1.0)
    assert main(["audit", str(config_file), *SMALL, "--significance", "0.5"]) == 1
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
