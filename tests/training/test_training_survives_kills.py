"""Runs that are killed at random moments give the same model and charge each step once.

There are five kills by default. Set BEVEL_KILLS=100 for more (`make test-slow`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
KILLS = int(os.environ.get("BEVEL_KILLS", 5))


@pytest.mark.full
def test_a_run_that_is_killed_again_and_again_is_the_unbroken_run(tmp_path):
    command = [sys.executable, str(TESTS / "training_kills.py"), str(tmp_path / "runs"), str(KILLS)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    seen = json.loads(run.stdout.splitlines()[-1])
    assert seen["kills"] >= KILLS and seen["runs"] >= 2, seen
    if KILLS >= 100:  # every important moment was hit
        moments = ("in a ledger line", "while staging", "before a charge", "between both halves")
        assert min(seen[moment] for moment in moments) >= 5, seen
