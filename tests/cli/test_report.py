"""`bevel report` passes on what it was asked for; raw figures only where it was."""

from pathlib import Path

from bevel.cli import main


def test_by_default_nothing_raw_is_in_it(reports, capsys):
    assert main(["report", "runs/a"]) == 0
    assert reports == [(Path("runs/a"), None, False)]
    assert capsys.readouterr().out == "runs/a/report.html\n"


def test_raw_and_elsewhere(reports):
    assert main(["report", "runs/a", "--output", "b.html", "--include-raw"]) == 0
    assert reports == [(Path("runs/a"), Path("b.html"), True)]


def test_wrong_usage():
    assert main(["report"]) == 2
