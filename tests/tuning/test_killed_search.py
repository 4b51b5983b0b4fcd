"""A search that is killed again and again (SIGKILL) ends as one that was not, at the same price."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# One trial that is killed in every part of its life, and a number of trials above 1.
PROGRAM = """
import sys
import searches
from bevel.tuning import TrialCount

TrialCount.draw = lambda self, seed: 3
result = searches.search(sys.argv[1])
print(result.score, result.settings["rate"])
"""


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_a_search_survives_kills(tmp_path, seed):
    folder, rng = tmp_path / "search", random.Random(seed)
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(TESTS), "JAX_PLATFORMS": "cpu"}
    secrets, ended = set(), None
    for attempt in range(40):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
            # Longer and longer, so that the search ends on a slow machine too.
            killed_at = time.monotonic() + rng.uniform(1.0, 15.0 + 2 * attempt)
            while run.poll() is None and time.monotonic() < killed_at:
                time.sleep(0.05)
            if run.poll() is None:
                run.kill()
            elif run.returncode == 0:
                ended = run.stdout.read()
        if (folder / "private/secrets.json").exists():
            secrets.add((folder / "private/secrets.json").read_text())
        if ended:
            break
    assert ended and len(secrets) == 1
    lines = (folder / "released/ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["entry"]["kind"] for line in lines] == ["ledger", "charge"]
    scores = json.loads((folder / "private/scores.json").read_text())
    assert len(scores) == 3
    assert float(ended.split()[0]) == max(map(float, scores.values()))
