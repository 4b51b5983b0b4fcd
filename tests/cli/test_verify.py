"""`bevel verify` says what was checked, and its exit code says whether all of it holds."""

import json

import pytest
import training_runs as runs

from bevel.cli import main
from bevel.shipping import export


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    trainer = runs.trainer(config=runs.config().make())
    runs.fit(folder, of=trainer, options=runs.options(delta=1e-3))
    return export(folder)


def test_what_was_checked_is_printed_in_80_columns(folder, capsys):
    files = [str(folder / name) for name in ("privacy.json", "ledger.jsonl", "model.safetensors")]
    assert main(["verify", files[0], "--ledger", files[1], "--model", files[2]]) == 0
    said = capsys.readouterr().out
    assert "passed  epsilon: recomputed" in said and "Not checked:" in said
    assert all(len(line) <= 80 for line in said.splitlines())


def test_json(folder, capsys):
    assert main(["verify", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] and found["epsilon"] == found["stated_epsilon"]


def test_a_forged_statement_has_exit_code_1(folder, tmp_path, capsys):
    fields = json.loads((folder / "privacy.json").read_text())
    (tmp_path / "privacy.json").write_text(json.dumps(fields | {"epsilon": 0.1}))
    words = ["verify", str(tmp_path / "privacy.json"), "--ledger", str(folder / "ledger.jsonl")]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "FAILED  epsilon" in said and "do not rely on this statement" in said
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False
    (tmp_path / "privacy.json").write_text("{}")
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["name"] == "statement"


def test_a_missing_file_is_a_message(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "none.json")]) == 1
    assert "there is no privacy statement at" in capsys.readouterr().err
