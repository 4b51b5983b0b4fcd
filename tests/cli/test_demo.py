"""The demo, shortened: it trains, compares, and ends with the path of its report."""

import json

from bevel.cli import main
from bevel.cli.demo import DIGITS, without_privacy


def test_a_short_demo(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["demo", "--steps", "4", "--folder", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "1437 digits to train on, 360 to test with" in printed
    assert "without privacy" in printed
    assert printed.splitlines()[-1] == f"report: {folder}/released/report.html"
    last = json.loads((folder / "released" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 4
    assert 3 < last["epsilon"] <= 4
    assert last["test_accuracy"] > 0.15
    assert "epsilon 4" in (folder / "released" / "report.html").read_text()


def test_the_demo_is_what_it_says():
    assert (DIGITS.plan.epsilon, DIGITS.plan.delta) == (4.0, 1e-4)
    assert DIGITS.mesh.axes == "data=4,model=2"
    plain = without_privacy(DIGITS)
    assert plain.plan.mechanism == "none"
    assert (plain.model, plain.optimizer) == (DIGITS.model, DIGITS.optimizer)


def test_the_sharp_edges_are_still_there(monkeypatch):
    from bevel.cli import sharp_edges

    called = []
    monkeypatch.setattr(sharp_edges, "main", lambda: called.append(True))
    assert main(["demo", "--edges"]) == 0
    assert called == [True]
