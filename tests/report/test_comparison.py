"""The page that compares runs: what it says, what marks runs apart, and what it never reads."""

import os
import re
import shutil

import pytest
from html_page import Page

from bevel.errors import FixArgumentsError
from bevel.report import write_comparison

SETTINGS = {
    "plan.mechanism.noise_multiplier": 1.1,
    "plan.mechanism.strategy": "Independent",
    "plan.batch_size": 512,
    "optimizer.learning_rate": 0.5,
}


@pytest.fixture
def two(by_hand, metric_lines):
    lines = [line | {"test_accuracy": 0.25} for line in metric_lines]
    first = by_hand(metrics=metric_lines, at="a", name="a", runs=("a",), settings=SETTINGS)
    other = SETTINGS | {"optimizer.learning_rate": 0.75, "plan.batch_size": 512.0}
    second = by_hand(metrics=lines, at="b", name="b", runs=("b",), settings=other)
    return [first, second]


def page_of(folders, tmp_path):
    return Page(write_comparison(folders, tmp_path / "c.html").read_text(encoding="utf-8"))


def test_runs_are_in_a_table_and_in_the_same_figures(two, tmp_path):
    page = page_of(two, tmp_path)
    for words in ("Comparison of 2 runs", "a, b", "DP-SGD", "10 of 10", "100 %", "25 %", "yes"):
        assert words in page.text, words
    figures = {"metric-0-step", "metric-0-epsilon", "metric-1-step", "metric-1-epsilon"}
    assert figures <= set(page.ids) and page.tags.count("figure") == 4
    assert "not directly comparable" not in page.text
    assert "Choosing the best of several runs" in page.text


def test_settings_that_differ_are_listed_and_no_others(two, tmp_path):
    page = page_of(two, tmp_path)
    assert "optimizer.learning_rate 0.5 0.75" in page.text
    assert "plan.batch_size" not in page.text and "plan.mechanism.strategy" not in page.text
    text = page_of([two[0], shutil.copytree(two[0], tmp_path / "copy")], tmp_path).text
    assert "all recorded settings are the same" in text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"unit": "user"}, "no: another unit"),
        ({"delta": 1e-6, "budget": {"epsilon": 8.0, "delta": 1e-6}}, "no: another δ"),
        ({"relation": "REPLACE_SPECIAL"}, "no: another relation"),
    ],
)
def test_runs_on_other_terms_are_marked(two, by_hand, metric_lines, tmp_path, changed, said):
    other = by_hand(metrics=metric_lines, at="c", name="c", runs=("c",), **changed)
    text = page_of([*two, other], tmp_path).text
    assert "Not all of these runs are directly comparable." in text and said in text
    assert "of c differ from those of a" in text


def test_lines_differ_by_more_than_colour(two, by_hand, metric_lines, tmp_path):
    more = [
        by_hand(metrics=metric_lines, at=f"r{i}", name=f"r{i}", runs=(f"r{i}",)) for i in range(10)
    ]
    text = write_comparison([*two, *more], tmp_path / "c.html").read_text()
    (figure,) = re.findall(r'<figure id="metric-0-step">(.*?)</figure>', text, re.S)
    swatches = re.findall(r'<svg class="swatch".*?</svg>', figure)
    assert len(set(swatches)) == 12
    plain = {re.sub(r"\bs\d\b", "", swatch) for swatch in swatches}
    assert len(plain) == 4  # four looks without colour, three colours of each


def test_runs_beyond_the_figures_are_counted(two, by_hand, metric_lines, tmp_path):
    more = [
        by_hand(metrics=metric_lines, at=f"r{i}", name=f"r{i}", runs=(f"r{i}",)) for i in range(12)
    ]
    page = page_of([*two, *more], tmp_path)
    assert "The last 2 runs are in the table only." in page.text and "r11" in page.text


def test_where_nothing_can_be_claimed_no_epsilon_is_shown(two, by_hand, metric_lines, tmp_path):
    known = by_hand(metrics=metric_lines, at="k", name="k", runs=("k",), key_is_secret=False)
    page = page_of([known, two[0]], tmp_path)
    assert "Nothing can be claimed about k" in page.text and "k none 1e-05" in page.text
    text = write_comparison([known, two[0]], tmp_path / "c.html").read_text()
    (figure,) = re.findall(r'<figure id="metric-0-epsilon">(.*?)</figure>', text, re.S)
    assert "<desc" in figure and "k: from" not in figure and "a: from" in figure


def test_runs_of_one_ledger_say_that_their_epsilon_is_shared(by_hand, metric_lines, tmp_path):
    folder = by_hand(metrics=metric_lines, ledger="../../all.jsonl", runs=("by hand", "b"))
    second = shutil.copytree(folder, tmp_path / "second")
    text = page_of([folder, second], tmp_path).text
    assert "share a ledger" in text
    assert f"by hand ({folder})" in text and f"by hand ({second})" in text  # told apart by folder


def test_only_released_files_are_read(two, tmp_path):
    before = write_comparison(two, tmp_path / "c.html").read_bytes()
    for folder in two:
        shutil.rmtree(folder / "private")
    assert write_comparison(two, tmp_path / "c.html").read_bytes() == before
    copies = [
        shutil.copytree(folder / "released", tmp_path / f"x{i}") for i, folder in enumerate(two)
    ]
    assert write_comparison(copies, tmp_path / "c.html").read_bytes() == before


def test_a_folder_that_is_not_a_run_is_named(two, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "notes.txt").touch()
    for stray, message in (
        ("other", r"other has no run\.json"),
        ("notes.txt", r"notes\.txt is a file"),
    ):
        with pytest.raises(FixArgumentsError, match=message):
            write_comparison([*two, tmp_path / stray], tmp_path / "c.html")
    assert not (tmp_path / "c.html").exists()
    with pytest.raises(FixArgumentsError, match="two runs or more"):
        write_comparison(two[:1], tmp_path / "c.html")


def test_damaged_metrics_name_the_run(two, tmp_path):
    (two[1] / "released" / "metrics.jsonl").write_text('{"epsilon": 1}\n')
    with pytest.raises(FixArgumentsError, match=r"b/released are not valid records of a run"):
        write_comparison(two, tmp_path / "c.html")


def test_text_of_runs_is_never_markup_and_nothing_is_loaded(two, by_hand, metric_lines, tmp_path):
    evil = "<script>alert(1)</script>"
    lines = [{**line, evil: 1.0} for line in metric_lines]
    folder = by_hand(lines, at="e", name=evil, runs=(evil,), settings={evil: evil}, unit="example")
    text = write_comparison([*two, folder], tmp_path / "c.html").read_text()
    page = Page(text)
    assert "script" not in page.tags and page.text.count("alert(1)") >= 6
    assert "default-src 'none'" in text and not re.search(r"https?:|url\(|@import", text)
    assert not {"src", "href", "srcset"} & {name for name, _ in page.attributes}


def test_the_page_goes_to_the_working_directory_by_default(two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert os.fspath(write_comparison(two)) == "comparison.html"
    assert (tmp_path / "comparison.html").exists()


def test_runs_without_metrics_are_compared_too(by_hand, tmp_path):
    folders = [by_hand(at=name, name=name, runs=(name,)) for name in "ab"]
    assert "None of these runs has metrics." in page_of(folders, tmp_path).text
