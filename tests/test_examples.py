"""Every example runs as a user would run it, and says something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(script):
    command = [sys.executable, "-W", "error", str(script)]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.strip()
    assert "nan" not in run.stdout
