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


def test_help_says_where_pages_go_and_which_is_not_private(capsys):
    assert main(["report", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "RUN/released/report.html" in said and "RUN/private/report.html" in said
    assert "NOT private" in said


def test_wrong_usage():
    assert main(["report"]) == 2
