"""The page in headless Chromium: no errors, every figure, nothing cut off."""

import html
import json
import re
import shutil
import subprocess

import pytest

from bevel.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = (390, 1440)
FIGURES = {"epsilon", "trade-off", "accuracy", "metric-0", "mesh-0", "mesh-1"}
RAW = {"raw-loss", "raw-clipped", "raw-batch", "raw-norms", "raw-speed"}

# The page is measured from outside, in frames of both widths, and is not changed for it.
MEASURE = """
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const view = frame.contentWindow, page = frame.contentDocument, root = page.documentElement;
    const scrolls = element => element.closest(".box") !== null;
    const box = element => element.getBoundingClientRect();
    const name = element => element.tagName + " " + element.textContent.trim().slice(0, 40);
    const wide = [...page.body.querySelectorAll("*")].filter(
      element => !scrolls(element) && (box(element).right > view.innerWidth + 0.5 ||
        box(element).left < -0.5));
    const cut = [...page.querySelectorAll("svg text, svg polyline, svg rect, svg circle")].filter(
      element => { const own = box(element), all = box(element.ownerSVGElement);
        return own.left < all.left - 1 || own.right > all.right + 1 ||
          own.top < all.top - 1 || own.bottom > all.bottom + 1; });
    const boxes = [...page.querySelectorAll(".box")].filter(
      element => box(element).right > view.innerWidth + 0.5);
    const hidden = [...page.querySelectorAll("figure")].filter(
      element => box(element).width < 60 || box(element).height < 60);
    return {inner: view.innerWidth, scroll: root.scrollWidth, height: root.scrollHeight,
      wide: wide.map(name), cut: cut.map(name), boxes: boxes.map(name), hidden: hidden.map(name),
      figures: [...page.querySelectorAll("figure")].filter(f => f.querySelector("svg"))
        .map(f => f.id)};
  });
  const said = document.createElement("pre");
  said.id = "measured";
  said.textContent = JSON.stringify(found);
  document.body.append(said);
});
"""


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
    return found


def opened(browser, path, profile):
    """The document after scripts ran, and what the browser logged."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--enable-logging=stderr", f"--user-data-dir={profile}", "--window-size=1500,1000"]
    command += ["--virtual-time-budget=20000", "--dump-dom", path.absolute().as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout, [line for line in run.stderr.splitlines() if "CONSOLE" in line]


def framed(path, text):
    frames = "".join(
        f'<iframe width="{width}" height="900" style="border:0" srcdoc="{html.escape(text)}">'
        "</iframe>"
        for width in WIDTHS
    )
    path.write_text(f"<!doctype html><meta charset=utf-8><body><script>{MEASURE}</script>{frames}")
    return path


def measured(browser, folder, text):
    document, errors = opened(browser, framed(folder / "frames.html", text), folder / "profile")
    (found,) = re.findall(r'<pre id="measured">(.*?)</pre>', document, re.S)
    return json.loads(html.unescape(found)), errors


@pytest.mark.parametrize("include_raw", [False, True])
def test_a_run_is_shown_whole(browser, whole, tmp_path, include_raw):
    text = write_report(whole, include_raw=include_raw).read_text()
    found, errors = measured(browser, tmp_path, text)
    assert not errors
    assert [page["inner"] for page in found] == list(WIDTHS)
    for page in found:
        assert page["scroll"] <= page["inner"], page
        assert not page["wide"] + page["cut"] + page["boxes"] + page["hidden"], page
        assert set(page["figures"]) == (FIGURES | RAW if include_raw else FIGURES)


def test_long_names_and_odd_numbers_are_not_cut_off(
    browser, by_hand, metric_lines, raw_lines, tmp_path
):
    long = "averaged_" * 12
    metrics = [{**line, f"{long}accuracy": 0.123456, long: -1.5e-7} for line in metric_lines]
    raw = [{**line, "loss": 123456.789 + line["step"]} for line in raw_lines]
    folder = by_hand(
        metrics=metrics,
        raw=raw,
        name=long,
        runs=[long, *(f"{long}{i}" for i in range(30))],
        limited=False,
        settings={f"table.{long}": long, "a.list": list(range(200))},
        changes=[{"step": 10**9, "name": long, "from": long, "to": long}],
        surroundings={"mesh": {"a_long_name_of_an_axis": [2, ""], "model": [64, ""]}},
    )
    text = write_report(folder, include_raw=True).read_text()
    found, errors = measured(browser, tmp_path, text)
    assert not errors
    for page in found:
        assert page["scroll"] <= page["inner"], page
        assert not page["wide"] + page["cut"] + page["boxes"] + page["hidden"], page


def test_the_measure_finds_what_is_cut_off(browser, tmp_path):
    text = (
        "<!doctype html><body><p style='width:600px'>wide</p><figure id=f>"
        "<svg width=100 height=100><text x=90 y=20>long text</text></svg></figure>"
    )
    (phone, _), _ = measured(browser, tmp_path, text)
    assert phone["scroll"] > 390 and phone["cut"] and "P wide" in phone["wide"]
