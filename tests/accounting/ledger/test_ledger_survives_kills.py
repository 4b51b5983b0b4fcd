"""`kill -9` at 250 random moments: no charge is lost or doubled, no ledger is half created."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # 250 processes

SCRIPT = Path(__file__).resolve().parents[2] / "ledger_kills.py"


def test_no_charge_is_lost_or_doubled_by_kill_9_at_200_moments(tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path / "ledger.jsonl"), "200"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    seen = json.loads(run.stdout)
    assert seen["charged"] == seen["released"]
    # The check above is only meaningful if kills came at all the moments that matter.
    assert seen["torn"] > 10 and seen["unacknowledged"] > 3 and seen["acknowledged"] > 30, seen
    assert min(seen["beginnings"].values()) > 3, seen
    assert seen["heavy"] == [], "charging imports packages that take long to import"
