"""`bevel report` passes on what it was asked for; raw figures only where it was."""

from pathlib import Path

import pytest

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


def test_a_baseline_is_a_number_or_a_folder(reports):
    assert main(["report", "a", "--baseline", "0.975", "--publish-baseline"]) == 0
    assert main(["report", "a", "--baseline", "runs/none", "--include-raw"]) == 0
    assert reports == [
        (Path("a"), None, False, {"baseline": 0.975, "publish_baseline": True}),
        (Path("a"), None, True, {"baseline": Path("runs/none")}),
    ]


def test_another_runs_audit(reports):
    assert main(["report", "a", "--include-raw", "--audit", "runs/audited"]) == 0
    assert reports == [(Path("a"), None, True, {"audit": Path("runs/audited")})]


def test_several_runs_are_compared(reports, capsys):
    assert main(["report", "a", "b", "c"]) == 0
    assert main(["report", "a", "b", "--output", "x.html"]) == 0
    assert reports == [
        (Path("a"), Path("b"), Path("c"), Path("comparison.html")),
        (Path("a"), Path("b"), Path("x.html")),
    ]
    assert capsys.readouterr().out == "comparison.html\nx.html\n"


@pytest.mark.parametrize(
    "option", [["--include-raw"], ["--baseline", "1"], ["--publish-baseline"], ["--audit", "x"]]
)
def test_options_of_one_run_are_refused_for_several(reports, capsys, option):
    assert main(["report", "a", "b", *option]) == 2
    assert f"{option[0]} is for the report of one run: pass one folder." in capsys.readouterr().err
    assert not reports


def test_errors_name_options(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert f"{tmp_path / 'a'} has no run.json" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "a"), "--baseline", "0.9"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "Pass --publish-baseline to show it" in said and "or --include-raw to write" in said


def test_wrong_usage():
    assert main(["report"]) == 2
