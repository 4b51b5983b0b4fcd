"""The page as a whole: what is on it, what is not, and that it stands by itself."""

import html.parser
import json
import re
import shutil
import stat
from importlib import resources

import pytest

from bevel.errors import FixArgumentsError
from bevel.report import write_report

VOID = {"meta", "br", "hr", "img", "link", "input"}
SECTIONS = ["guarantee", "cost", "accuracy-section", "placement", "collectives", "what-ran"]
RAW = ["raw-loss", "raw-clipped", "raw-batch", "raw-norms"]


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


def test_a_trained_run_has_every_part(trained, tmp_path):
    path = write_report(trained, tmp_path / "page.html")
    page = Page(path.read_text(encoding="utf-8"))
    expected = [*SECTIONS, "epsilon", "trade-off", "accuracy", "mesh-0", "mesh-1"]
    assert set(expected) == set(page.ids) and len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 5
    record = json.loads((trained / "run.json").read_text())
    for words in (
        "epsilon 3 at delta 0.001",
        "added or removed",
        "Tuning is excluded",
        "All steps of the plan were taken.",
        "held_out_accuracy",
        "P(None, 'model')",
        "all-reduce",
        record["plan"]["fingerprint"],
        record["versions"]["jax"],
    ):
        assert words in page.text, words


def test_what_a_report_needs_is_in_the_record(trained):
    record = json.loads((trained / "run.json").read_text())
    assert record["ledger"] == "../all.jsonl"
    reduced = [one for one in record["collectives"] if one["kind"] == "all-reduce"]
    assert reduced and all(one["sent"] > 0 and one["shapes"] for one in reduced)
    assert {"params/w", "params/b"} <= {row["path"] for row in record["arrays"]}


def test_asks_for_nothing_and_runs_nothing(trained, tmp_path):
    path = write_report(trained, tmp_path / "page.html", include_raw=True)
    text, page = path.read_text(), Page(path.read_text())
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {"src", "href", "xlink:href", "srcset"} & {name for name, _ in page.attributes}
    assert not re.search(r"https?:|url\(|@import|//[a-z]", text)
    assert "default-src 'none'" in text


def test_secrets_and_raw_records_stay_out(trained, tmp_path):
    secrets = json.loads((trained / "secrets.json").read_text())
    raw = [json.loads(line) for line in (trained / "raw.jsonl").read_text().splitlines()]
    before = write_report(trained, tmp_path / "a.html").read_text()
    assert not any(str(value) in before for value in secrets.values() if len(str(value)) > 12)
    assert not any(id in Page(before).ids for id in ["raw", *RAW])
    assert not any(str(line["loss"]) in before for line in raw)
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    shutil.copy(trained.parent / "all.jsonl", tmp_path / "all.jsonl")
    (copy / "secrets.json").unlink()
    (copy / "raw.jsonl").write_text("never opened\n")
    assert write_report(copy, tmp_path / "b.html").read_text() == before


def test_raw_figures_are_headed_as_not_private_and_for_the_owner(trained, by_hand, raw_lines):
    folder = by_hand(raw=raw_lines)
    public, raw = write_report(folder), write_report(folder, include_raw=True)
    assert public == folder / "report.html" and raw == folder / "report_not_private.html"
    assert stat.S_IMODE(raw.stat().st_mode) == 0o600
    page = Page(raw.read_text())
    assert set(RAW) <= set(page.ids)
    assert "Not private: what training saw" in page.text
    assert "(not private)" in raw.read_text().split("</title>")[0]
    real = Page(write_report(trained, folder / "real.html", include_raw=True).read_text())
    assert set(RAW) <= set(real.ids)


def test_what_is_missing_is_said(by_hand):
    folder = by_hand(runs=(), status="running", collectives=None, arrays=None, finished=None)
    page = page_of(folder, include_raw=True)
    for words in (
        "no checkpoint was released so far",
        "There is no trade-off curve",
        "There are no metrics yet",
        "were not recorded",
        "Where arrays lie was not recorded",
        "still running, or it was stopped from outside",
        "raw.jsonl is empty or not there",
        "Nothing was charged so far",
    ):
        assert words in page.text, words


def test_a_record_with_next_to_nothing_still_makes_a_page(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    page = page_of(tmp_path)
    assert "What this run spent is not known" in page.text and set(SECTIONS) <= set(page.ids)


def test_text_from_the_run_is_never_markup(by_hand, metric_lines, raw_lines):
    evil = "<script>alert(1)</script>"
    metrics = [{**line, f"{evil}acc": 0.5, evil: 1.0} for line in metric_lines]
    array = {"path": evil, "spec": f"P('{evil}')", "dtype": evil, "shape": [1], "bytes": 4}
    folder = by_hand(
        metrics=metrics,
        raw=raw_lines,
        runs=(evil,),
        name=evil,
        status=evil,
        commit=evil,
        arrays=[array],
        versions={evil: evil},
        plan={"description": evil, "fingerprint": evil},
        collectives=[{"kind": evil, "dtype": evil, "operation": evil, "axes": [evil]}],
        surroundings={"mesh": {evil: [2, "Auto"]}, "device": evil},
    )
    path = write_report(folder, include_raw=True)
    page = Page(path.read_text())
    assert "script" not in page.tags and page.text.count("alert(1)") >= 10


def test_a_page_that_cannot_be_written_says_so(by_hand, tmp_path):
    with pytest.raises(FixArgumentsError, match=r"cannot be written to .*give another output"):
        write_report(by_hand(), tmp_path / "nowhere" / "page.html")
    assert write_report(tmp_path / "run", str(tmp_path / "page.html")).exists()


def test_template_and_style_are_in_the_package():
    files = {file.name for file in resources.files("bevel.report").iterdir()}
    assert {"page.html", "page.css"} <= files
