"""`bevel.sharding.processes`, the name by which users launch and join processes."""

import subprocess
import sys

import bevel
from bevel import processes


def test_names_are_those_of_bevel_processes():
    for name in ("Joined", "join", "launch"):
        assert getattr(bevel.sharding.processes, name) is getattr(processes, name)


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "bevel.sharding.processes", "--processes", "2", "--"]
    program = "import os; print(os.environ['BEVEL_PROCESS'])"
    run = subprocess.run([*command, sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert {line[-1] for line in run.stdout.splitlines()} == {"0", "1"}
