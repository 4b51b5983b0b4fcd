"""`bevel launch` starts a command in several processes and returns its exit code."""

import sys

import pytest

from bevel.cli import main


@pytest.mark.parametrize("code", [0, 3])
def test_the_command_runs_in_every_process(code, capfd):
    program = f"import os, sys; print('I am', os.environ['BEVEL_PROCESS']); sys.exit({code})"
    given = ["launch", "--processes", "1", "--", sys.executable, "-c", program, "--", "-x"]
    assert main(given) == code
    assert "I am 0" in capfd.readouterr().out


@pytest.mark.parametrize("given", [[], ["--processes", "2"], ["--"], ["python", "x.py"]])
def test_nothing_to_launch(given, capsys):
    assert main(["launch", *given]) == 2
    assert "bevel launch" in capsys.readouterr().err


def test_no_processes(capsys):
    assert main(["launch", "--processes", "0", "--", "true"]) == 1
    assert "--processes and --devices-per-process: pass at least 1" in capsys.readouterr().err
