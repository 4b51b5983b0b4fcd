"""The demo, shortened: it trains, compares, and ends with the path of its report."""

import json

import pytest

from bevel.cli import main
from bevel.cli.demo import DIGITS, without_privacy

pytestmark = pytest.mark.full  # a whole demo


def test_a_short_demo(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["demo", "--steps", "4", "--folder", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "1437 training digits, 360 test digits" in printed
    assert "without privacy" in printed
    assert printed.splitlines()[-1] == f"report: {folder}/released/report.html"
    last = json.loads((folder / "released" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 4
    assert 3 < last["epsilon"] <= 4
    assert last["test_accuracy"] > 0.15
    assert "epsilon 4" in (folder / "released" / "report.html").read_text()


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
