"""The page as a whole: what it contains, what it omits, and that it is self-contained."""

import ast
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from html_page import Page

import bevel.report
from bevel.errors import FixArgumentsError
from bevel.report import write_report
from bevel.training.folder import NO_TIME

SECTIONS = ["guarantee", "accuracy-section", "cost", "assumptions", "settings"]
SECTIONS += ["placement", "collectives", "what-ran"]
RAW = ["raw-signal", "raw-clipped", "raw-norms", "raw-batch", "raw-loss", "raw-speed"]
OWNER = ["raw", "time", "audit", "time-parts", *RAW]
ACCURACY = ["accuracy", "accuracy-epsilon"]
METRIC = ["metric-0", "metric-0-epsilon"]
CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d|\b\d+(\.\d+)? ?(s|seconds)\b|per second", re.I)
OTHER_DAY = """
import sys
from bevel.report import write_report
write_report(sys.argv[1], sys.argv[2])
"""


def page_of(folder, **options):
    return Page(write_report(folder, **options).read_text(encoding="utf-8"))


def parts_of(page):
    """The ids of sections and figures, without those that label them."""
    return {id for id in page.ids if not id.endswith(("-h", "-title", "-desc"))}


def test_a_whole_run_has_every_part(whole):
    page = page_of(whole)
    expected = [*SECTIONS, "epsilon", "trade-off", *ACCURACY, *METRIC, "mesh-0", "mesh-1"]
    assert set(expected) == parts_of(page) and len(page.ids) == len(set(page.ids))
    assert page.tags.count("figure") == 8
    for words in (
        "In real-number arithmetic, what was released is",
        "ε (epsilon) limits how much one example can change",
        "A blind guess is right 50% of the time",
        "Mironov 2012",
        "ε = 8 at δ = 1e-05",
        "added or removed",
        "All steps of the plan were taken.",
        "test_accuracy",
        "P(None, 'model')",
        "all-reduce",
        "model.py:7",
        "f" * 64,
        "0.12.0",
        "16, 32",
    ):
        assert words in page.text, words


@pytest.mark.full
def test_what_the_trainer_writes_makes_both_pages(trained):
    public, owner = page_of(trained), page_of(trained, include_raw=True)
    expected = [*SECTIONS, "epsilon", "trade-off", *ACCURACY, "mesh-0", "mesh-1"]
    assert set(expected) == parts_of(public) and {*expected, *OWNER} == parts_of(owner)
    record = json.loads((trained / "released" / "run.json").read_text())
    for words in (
        "ε = 3 at δ = 0.001",
        "All steps of the plan were taken.",
        "held_out_accuracy",
        "P(None, 'model')",
        "all-reduce",
        "steps 4 of 4",
        record["plan"]["fingerprint"],
        record["versions"]["jax"],
        *record["settings"],
    ):
        assert words in public.text, words
    assert not CLOCK.search(public.text), CLOCK.search(public.text)
    private = json.loads((trained / "private" / "run.json").read_text())
    raw = [json.loads(s) for s in (trained / "private" / "raw.jsonl").read_text().splitlines()]
    hidden = [private["started"], private["program"], *(line["loss"] for line in raw)]
    text = (trained / "released" / "report.html").read_text()
    assert len(raw) == 4 and not [value for value in hidden if str(value) in text]
    assert "Began " + private["started"] in owner.text and "Examples per second" in owner.text
    assert "not recorded" not in owner.text.split("Not private: training")[1].split("audited")[0]


def test_settings_and_their_changes_are_shown(whole, by_hand):
    text = page_of(whole).text
    assert "optimizer.learning_rate 0.5" in text and "model.kind conv" in text
    assert "4 optimizer.learning_rate 1.0 0.5" in text
    settings = {"a.none": None, "a.list": [1, 2], "a.flag": True}
    changes = [{"step": 2, "name": "a.none", "from": None, "to": "x"}]
    text = page_of(by_hand(at="odd", settings=settings, changes=changes)).text
    for words in ("a.none not set", "a.list [1, 2]", "a.flag true", "2 a.none not set x"):
        assert words in text, words
    text = page_of(by_hand(at="none", settings={}, changes=[])).text
    assert "No settings were recorded" in text and "changed during the run" not in text


def test_asks_for_nothing_and_runs_nothing(whole):
    path = write_report(whole, include_raw=True)
    text, page = path.read_text(), Page(path.read_text())
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {"src", "href", "xlink:href", "srcset"} & {name for name, _ in page.attributes}
    assert not re.search(r"https?:|url\(|@import|//[a-z]", text)
    assert "default-src 'none'" in text


def test_the_public_page_is_a_function_of_what_was_released(whole, tmp_path):
    """The same bytes without private/, from a copy of released/ alone, and on another day."""
    before = write_report(whole).read_bytes()
    assert write_report(whole).read_bytes() == before
    shutil.rmtree(whole / "private")
    assert write_report(whole).read_bytes() == before
    copy = tmp_path / "x" / "y" / "given"
    shutil.copytree(whole / "released", copy)
    shutil.copy(tmp_path / "all.jsonl", tmp_path / "x" / "all.jsonl")
    assert write_report(copy) == copy / "report.html"
    assert (copy / "report.html").read_bytes() == before
    for path in [*copy.rglob("*"), copy]:
        os.utime(path, (2e9, 2e9))
    elsewhere = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
    command = [sys.executable, "-c", OTHER_DAY, str(copy), str(tmp_path / "later.html")]
    subprocess.run(command, env=os.environ | elsewhere, check=True, timeout=300)
    assert (tmp_path / "later.html").read_bytes() == before


def test_no_module_of_the_report_reads_the_clock():
    for path in Path(bevel.report.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not names & {"time", "datetime", "random", "socket", "platform"}, path


def test_no_time_and_no_raw_value_is_on_the_public_page(whole, raw_lines):
    text = write_report(whole).read_text()
    page = Page(text)
    assert not CLOCK.search(page.text), CLOCK.search(page.text)
    assert not any(id in page.ids for id in OWNER)
    private = json.loads((whole / "private" / "run.json").read_text())
    secrets = json.loads((whole / "private" / "secrets.json").read_text())
    hidden = [private[name] for name in ("started", "finished", "seconds", "program")]
    hidden += [secrets["root"], "0.253119", "54321", "3000.25"]
    hidden += [line[name] for line in raw_lines for name in ("loss", "signal_to_noise")]
    assert not [value for value in hidden if str(value) in text]
    for word in ("Training loss", "Clipped fraction", "Batch sizes", "gradient norms", "Began"):
        assert word not in page.text, word


def test_the_released_page_has_the_time_of_all_that_is_released(whole):
    path = write_report(whole)
    assert path.stat().st_mtime == (whole / "released").stat().st_mtime == NO_TIME


def test_the_owners_page_has_times_and_raw_figures(whole):
    page = page_of(whole, include_raw=True)
    assert set(RAW) <= set(page.ids)
    for words in (
        "Not private: training figures",
        "Not private: where time went",
        "This run was not audited",
        "Began 2031-01-01T00:00:17+00:00",
        "Resumed no",
        "Ended 2031-01-01T01:02:03+00:00",
        "Time since it was last started 3706.500 s",
        "waiting for data 1.250 s",
        "Examples per second, last 54,330",
        "Program " + "d19e57" * 10,
    ):
        assert words in page.text, words
    assert CLOCK.search(page.text)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_the_owners_page_is_for_the_owner_whatever_the_umask(whole, tmp_path, umask):
    before = os.umask(umask)
    try:
        paths = [write_report(whole, include_raw=True)]
        paths.append(write_report(whole, tmp_path / "elsewhere.html", include_raw=True))
    finally:
        os.umask(before)
    assert paths[0] == whole / "private" / "report.html"
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "(not private)" in path.read_text().split("</title>")[0]


def test_the_owners_page_is_never_written_among_what_is_released(whole):
    for name in ("raw.html", "checkpoints/raw.html", "../released/raw.html"):
        with pytest.raises(FixArgumentsError, match=r"may be shown to anyone.*another output"):
            write_report(whole, whole / "released" / name, include_raw=True)
    assert not list((whole / "released").rglob("raw.html"))


def test_no_scratch_file_stays(whole):
    write_report(whole)
    write_report(whole, include_raw=True)
    found = {p.name for half in ("released", "private") for p in (whole / half).iterdir()}
    assert not [name for name in found if name.startswith(".")]


def test_what_is_missing_is_said(by_hand):
    private = {"status": "running", "finished": None, "seconds": None}
    folder = by_hand(runs=(), ending=None, collectives=None, arrays=None, private=private)
    page = page_of(folder, include_raw=True)
    for words in (
        "no checkpoint was released so far",
        "There is no trade-off curve",
        "There are no metrics yet",
        "were not recorded",
        "The placement of arrays was not recorded",
        "still running, or it was killed",
        "Ended not yet",
        "raw.jsonl is empty or missing",
        "Nothing was charged so far",
    ):
        assert words in page.text, words
    public = page_of(folder)
    assert "no steps released so far" in public.text and "running" not in public.text


def test_records_with_next_to_nothing_still_make_both_pages(tmp_path):
    for half in ("released", "private"):
        (tmp_path / half).mkdir()
        (tmp_path / half / "run.json").write_text("{}")
    for include_raw in (False, True):
        page = page_of(tmp_path, include_raw=include_raw)
        assert "What this run spent is not known" in page.text and set(SECTIONS) <= set(page.ids)


@pytest.mark.parametrize("changed", [{"key_is_secret": False}, {"name": "not in the ledger"}])
def test_where_nothing_can_be_claimed_no_epsilon_and_no_curve_are_shown(
    by_hand, metric_lines, changed
):
    page = page_of(by_hand(metrics=metric_lines, **changed))
    assert "guarantee none" in page.text and "trade-off" not in page.ids
    assert "ε spent" not in page.text


def test_text_from_the_run_is_never_markup(by_hand, metric_lines, raw_lines):
    evil = "<script>alert(1)</script>"
    metrics = [{**line, f"{evil}acc": 0.5, evil: 1.0} for line in metric_lines]
    array = {"path": evil, "spec": f"P('{evil}')", "dtype": evil, "shape": [1], "bytes": 4}
    folder = by_hand(
        metrics=metrics,
        raw=raw_lines,
        runs=(evil,),
        name=evil,
        ending=evil,
        commit=evil,
        arrays=[array],
        versions={evil: evil},
        plan={"description": evil, "fingerprint": evil},
        collectives=[{"kind": evil, "dtype": evil, "operation": evil, "axes": [evil]}],
        surroundings={"mesh": {evil: [2, "Auto"]}, "device": evil},
        settings={evil: evil},
        changes=[{"step": evil, "name": evil, "from": evil, "to": evil}],
        private={"status": evil, "started": evil, "program": evil},
    )
    for include_raw in (False, True):
        page = page_of(folder, include_raw=include_raw)
        assert "script" not in page.tags and page.text.count("alert(1)") >= 16


def test_a_page_that_cannot_be_written_says_so(by_hand, tmp_path):
    with pytest.raises(FixArgumentsError, match=r"cannot be written to .*pass another output"):
        write_report(by_hand(), tmp_path / "nowhere" / "page.html")
    assert write_report(tmp_path / "run", str(tmp_path / "page.html")).exists()


def test_a_baseline_is_public_only_where_the_owner_says_so(whole):
    before = write_report(whole).read_bytes()
    with pytest.raises(FixArgumentsError, match=r"no epsilon covers it.*publish_baseline=True"):
        write_report(whole, baseline=0.97531)
    with pytest.raises(FixArgumentsError, match="publish_baseline=True needs a baseline"):
        write_report(whole, publish_baseline=True)
    assert (whole / "released" / "report.html").read_bytes() == before
    owner = page_of(whole, baseline={"test_accuracy": 0.97531}, include_raw=True)
    public = page_of(whole, baseline=0.97531, publish_baseline=True)
    for page in (owner, public):
        assert "test accuracy without privacy 97.5 %" in page.text
        assert "test_accuracy 1 0.97531" in page.text  # in the table
        assert "the ε on this page does not cover them" in page.text
    assert write_report(whole).read_bytes() == before  # nothing of it stayed in released/


def test_the_page_reads_from_the_guarantee_to_the_details(whole):
    page = page_of(whole, include_raw=True)
    order = [id for id in page.ids if id in {*SECTIONS, "raw", "time", "audit"}]
    assert order == [*SECTIONS, "raw", "time", "audit"]


def test_settings_are_rows_and_not_the_text_of_the_plan(by_hand):
    text = page_of(by_hand(plan={"fingerprint": "f" * 64, "description": "┌──┐ repr"})).text
    assert "┌" not in text and "repr" not in text and "expected batch size 10" in text


def test_dropped_examples_are_a_warning_at_the_top_of_the_raw_section(by_hand, raw_lines):
    lines = [line | {"not_finite": 2, "batch_size": 12} for line in raw_lines]
    text = page_of(by_hand(raw=lines), include_raw=True).text
    section = text.split("Not private: training figures")[1]
    assert section.index("Examples were dropped. 17% of the examples") < section.index("Signal")


@pytest.mark.parametrize("include_raw", [False, True])
def test_the_page_has_landmarks_headings_in_order_and_labelled_tables(whole, include_raw):
    text = write_report(whole, include_raw=include_raw).read_text()
    page = Page(text)
    assert '<html lang="en">' in text
    assert page.tags.count("main") == page.tags.count("header") == page.tags.count("h1") == 1
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert page.tags.count("table") == page.tags.count("caption")
    assert not re.search(r"<th(?![^>]*scope=)[ >]", text)
    labels = {value for name, value in page.attributes if name == "aria-labelledby"}
    assert {id for label in labels for id in label.split()} <= set(page.ids)
    for svg in re.findall(r"<svg[^>]*>", text):
        assert 'role="img"' in svg or 'aria-hidden="true"' in svg
    assert page.tags.count("section") == len([1 for label in labels if label.endswith("-h")])


def test_long_runs_give_small_pages(by_hand):
    """A figure for every row, or a mark at every point, would take megabytes."""
    raw = [
        {"step": s, "attempt": 0, "batch_size": 500 + s % 7, "loss": 1 / (1 + s)}
        | {"clipped_fraction": (s % 11) / 10, "clip_norm": 1.0, "not_finite": 0}
        | {"norm_quantiles": [0.1, 0.9 + s % 3, 7.0], "signal_to_noise": 0.5 + (s % 5) / 10}
        | ({"examples_per_second": 100.0 + s % 9} if s % 10 == 9 else {})
        for s in range(100_000)
    ]
    raw[77_777]["loss"] = 321.5
    metrics = [
        {"step": s, "epsilon": s / 1e5, "delta": 1e-5, "attempt": 0, "test_accuracy": s / 1e5}
        for s in range(10, 100_001, 10)
    ]
    folder = by_hand(metrics=metrics, raw=raw, steps=100_000)
    write_report(folder)
    path = write_report(folder, include_raw=True)
    assert path.stat().st_size < 300_000
    assert "between 1e−05 and 321.5" in path.read_text()  # the peak of the loss is on the page
    assert (folder / "released" / "report.html").stat().st_size < 300_000
