"""`bevel new` writes projects that train, report and audit as they are, and overwrites nothing."""

import itertools
import subprocess
import sys

import jax
import pytest
from own_models import promotion

from bevel.cli import main
from bevel.cli.config import read_config
from bevel.cli.job import Job
from bevel.cli.new import DATA, FRAMEWORKS, project_files
from bevel.errors import FreeSpaceError

ALL = list(itertools.product(DATA, FRAMEWORKS))


@pytest.mark.parametrize(("data", "framework"), ALL)
def test_every_project_has_a_model_that_fits_its_data(data, framework, tmp_path, monkeypatch):
    assert main(["new", str(tmp_path / "mine"), "--data", data, "--framework", framework]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    assert {path.name for path in (tmp_path / "mine").iterdir()} == set(
        project_files(data, framework)
    )
    config = read_config("config.toml")
    with promotion():
        job = Job(config)
        assert jax.tree.leaves(job.init())  # traced and checked
    assert config.plan.delta < 1 / len(job.data.train)
    assert config.plan.batch_size < len(job.data.train)


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch, capsys):
    assert main(["new", str(tmp_path / "mine"), "--data", "table"]) == 0
    assert "bevel train config.toml" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "mine")
    readme = (tmp_path / "mine" / "README.md").read_text()
    commands = [
        line.split("#")[0].split()[1:] for line in readme.splitlines() if line[:4] == "    "
    ]
    assert [command[0] for command in commands] == ["train", "report", "audit"]
    short = {
        "train": ["--plan.steps=2"],
        "audit": ["--plan.steps=2", "--canaries=20", "--run.test_seed=0"],
    }
    with promotion():
        for command in commands:
            assert main([*command, *short.get(command[0], [])]) == 0, command
    assert "test accuracy" in capsys.readouterr().out
    assert (tmp_path / "mine" / "runs" / "first" / "released" / "report.html").is_file()


@pytest.mark.full
@pytest.mark.parametrize(("data", "framework"), ALL)
def test_every_project_trains_in_a_process_of_its_own(data, framework, tmp_path):
    for name, text in project_files(data, framework).items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "bevel", "train", "config.toml", "--plan.steps=3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout


def test_a_folder_with_files_and_a_file_are_left_alone(tmp_path, capsys):
    (tmp_path / "config.toml").write_text("mine")
    assert main(["new", str(tmp_path)]) == 1
    assert (
        "has files in it, and bevel new overwrites nothing: name a new" in capsys.readouterr().err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
    assert main(["new", str(tmp_path / "config.toml")]) == 1
    assert "is a file: name a new folder" in capsys.readouterr().err
    assert (tmp_path / "config.toml").read_text() == "mine"


def test_an_empty_folder_is_used_and_a_missing_framework_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["new", str(tmp_path), "--framework", "equinox"]) == 0
    assert "pip install 'bevel[frameworks]'   # equinox is not" in capsys.readouterr().out
    assert (tmp_path / "model.py").is_file()


def test_a_full_disk_leaves_no_part_of_a_project(tmp_path, monkeypatch, capsys):
    written = iter([None, FreeSpaceError("the disk is full")])

    def write_file(path, data):
        path.write_bytes(data)
        if error := next(written):
            raise error

    monkeypatch.setattr("bevel.cli.new.write_file", write_file)
    assert main(["new", str(tmp_path / "mine")]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert not list((tmp_path / "mine").iterdir())
    monkeypatch.undo()
    assert main(["new", str(tmp_path / "mine")]) == 0
