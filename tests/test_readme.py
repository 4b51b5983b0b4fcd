"""The first lines of the README run as they stand, and the page stays short."""

import json
import re
from pathlib import Path

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def first_program() -> str:
    return re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]


def test_the_page_and_its_program_are_short():
    assert len(README.splitlines()) <= 150
    assert len([line for line in first_program().splitlines() if line]) <= 12


def test_the_program_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(first_program(), {})
    lines = (tmp_path / "runs/first/released/metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["step"] == 100
    assert last["epsilon"] <= 3
