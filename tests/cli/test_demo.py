"""The demo, shortened: it trains, compares, and ends with what to try next."""

import json

import pytest

from bevel.cli import main
from bevel.cli.demo import DIGITS, FOLDER, without_privacy

pytestmark = pytest.mark.full  # a whole demo


def test_a_short_demo(tmp_path, capsys):
    folder = tmp_path / "run"
    line = ["demo", "--steps", "4", "--folder", str(folder)]
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert "Training on 1437 digits" in printed
    assert "without privacy" in printed
    lines = printed.splitlines()
    assert len(lines) <= 25 and lines[-4] == "Try next:"
    assert str(folder / "released" / "report.html") in lines[-3]
    fitting = [text for text in lines if str(folder) not in text]
    assert max(map(len, fitting)) <= 80
    last = json.loads((folder / "released" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 4
    assert 3 < last["epsilon"] <= 4
    assert last["test_accuracy"] > 0.15
    page = (folder / "released" / "report.html").read_text()
    assert "and the ε on this page does not cover them" in page  # the baseline without privacy

    ledger = (folder / "released" / "ledger.jsonl").read_bytes()
    assert main(line) == 0
    again = capsys.readouterr().out
    assert f"The demo in {folder} is complete: test accuracy" in again
    assert f"To start over, remove the folder: rm -r {folder}" in again
    assert "Training" not in again
    assert (folder / "released" / "ledger.jsonl").read_bytes() == ledger
    assert main([*line, "--quiet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["demo", "--steps", "5", "--folder", str(folder), "--quiet"]) == 1
    assert "[plan] steps: 4 in the run, 5 in the config" in capsys.readouterr().err


def test_the_demo_stays_in_the_working_directory():
    assert str(FOLDER) == "runs/demo"


def test_the_demo_has_the_budget_and_mesh_that_its_help_states():
    assert (DIGITS.plan.epsilon, DIGITS.plan.delta) == (4.0, 1e-4)
    assert DIGITS.mesh.axes == "data=4,model=2"
    plain = without_privacy(DIGITS)
    assert plain.plan.mechanism == "none"
    assert (plain.model, plain.optimizer) == (DIGITS.model, DIGITS.optimizer)


def test_edges_shows_the_sharp_edges(monkeypatch):
    from bevel.cli import sharp_edges

    called = []
    monkeypatch.setattr(sharp_edges, "main", lambda: called.append(True))
    assert main(["demo", "--edges"]) == 0
    assert called == [True]
