"""The page as a whole: what it contains, what it omits, and that it is self-contained."""

import ast
import html.parser
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import bevel.report
from bevel.errors import FixArgumentsError
from bevel.report import write_report
from bevel.training.folder import NO_TIME

VOID = {"meta", "br", "hr", "img", "link", "input"}
SECTIONS = ["guarantee", "cost", "accuracy-section", "placement", "collectives", "what-ran"]
RAW = ["raw-loss", "raw-clipped", "raw-batch", "raw-norms", "raw-speed"]
CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d|\b\d+(\.\d+)? ?(s|seconds)\b|per second", re.I)
OTHER_DAY = """
import sys
from bevel.report import write_report
write_report(sys.argv[1], sys.argv[2])
"""


class Page(html.parser.HTMLParser):
    """Elements, ids and text; raises where elements are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.words, self.attributes = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(folder, **options):
    return Page(write_report(folder, **options).read_text(encoding="utf-8"))


def test_a_whole_run_has_every_part(whole):
    page = page_of(whole)
    expected = [*SECTIONS, "epsilon", "trade-off", "accuracy", "metric-0", "mesh-0", "mesh-1"]
    assert set(expected) == set(page.ids) and len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 6
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
    expected = [*SECTIONS, "epsilon", "trade-off", "accuracy", "mesh-0", "mesh-1"]
    assert set(expected) == set(public.ids) and {*expected, "raw", *RAW} == set(owner.ids)
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
    assert "not recorded" not in owner.text.split("Not private: times")[1]


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
    assert not any(id in page.ids for id in ["raw", *RAW])
    private = json.loads((whole / "private" / "run.json").read_text())
    secrets = json.loads((whole / "private" / "secrets.json").read_text())
    hidden = [private[name] for name in ("started", "finished", "seconds", "program")]
    hidden += [secrets["root"], "0.253119", "54321"]
    hidden += [line["loss"] for line in raw_lines]
    assert not [value for value in hidden if str(value) in text]
    for word in ("Training loss", "Clipped fraction", "Batch sizes", "clip norm", "Began"):
        assert word not in page.text, word


def test_the_released_page_has_the_time_of_all_that_is_released(whole):
    path = write_report(whole)
    assert path.stat().st_mtime == (whole / "released").stat().st_mtime == NO_TIME


def test_the_owners_page_has_times_and_raw_figures(whole):
    page = page_of(whole, include_raw=True)
    assert set(RAW) <= set(page.ids)
    for words in (
        "Not private: times and raw training figures",
        "Began 2031-01-01T00:00:17+00:00",
        "Resumed no",
        "Ended 2031-01-01T01:02:03+00:00",
        "Time since it was last started 3706.500 s",
        "waiting for data 1.250 s",
        "Examples per second, last 5.433e+04",
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


def test_template_and_style_are_in_the_package():
    files = {file.name for file in resources.files("bevel.report").iterdir()}
    assert {"page.html", "page.css"} <= files
