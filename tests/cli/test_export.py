"""`bevel export` writes a folder, and says what is promised and how to check it."""

import pytest
import training_runs as runs

from bevel.cli import main
from bevel.shipping import read_statement


@pytest.fixture(name="run", scope="module")
def fixture_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    trainer = runs.trainer(config=runs.config().make())
    runs.fit(folder, of=trainer, options=runs.options(delta=1e-3))
    return folder


def test_an_export_is_written_and_checked(run, capsys):
    assert main(["export", str(run)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{run / 'export'}\n") and "private with respect to one example" in said
    assert all(len(line) <= 80 for line in said.splitlines()[1:-1])
    assert said.splitlines()[-1] == f"Anyone can check this: bevel verify {run / 'export'}"
    assert main(["verify", str(run / "export")]) == 0
    assert "verify PASSED" in capsys.readouterr().out
    assert main(["export", str(run)]) == 1
    assert "an export never replaces anything" in capsys.readouterr().err


def test_options(run, tmp_path, capsys):
    words = ["--format", "orbax", "--step", "4", "--delta", "1e-2", "--without-ledger"]
    words += ["--tuned", "nothing", "--output", str(tmp_path / "out")]
    assert main(["export", str(run), *words]) == 0
    statement = read_statement(tmp_path / "out")
    assert (statement.run.step, statement.delta, statement.tuning) == (4, 1e-2, "nothing")
    assert statement.model.format == "orbax" and not (tmp_path / "out" / "ledger.jsonl").exists()
    words = ["--ledger", str(tmp_path / "no"), "--output", str(tmp_path / "other")]
    assert main(["export", str(run), *words]) == 1
    assert "--ledger" in capsys.readouterr().err
    assert main(["export", str(run), "--format", "zip"]) == 2


def test_a_folder_that_is_not_a_run(tmp_path, capsys):
    assert main(["export", str(tmp_path)]) == 1
    assert "is not the folder of a run" in capsys.readouterr().err
