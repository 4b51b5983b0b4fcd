"""The page in headless Chromium: no errors, every figure, nothing cut off."""

import html
import json
import re
import shutil
import subprocess
import zlib

import numpy as np
import pytest

from bevel.report import write_comparison, write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = (390, 1440)
THEMES = {"light": 1, "dark": 0}  # values of Chromium's setting preferredColorScheme
FIGURES = {"epsilon", "trade-off", "accuracy", "accuracy-epsilon", "metric-0", "metric-0-epsilon"}
FIGURES |= {"mesh-0", "mesh-1"}
RAW = {"raw-signal", "raw-loss", "raw-clipped", "raw-batch", "raw-norms", "raw-speed", "time-parts"}
RAW |= {"audit-scores", "audit-roc"}
COMPARED = {f"metric-{number}-{axis}" for number in range(2) for axis in ("step", "epsilon")}
LEAST_TEXT = 10.5  # pixels, of text in charts

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
    const charts = [...page.querySelectorAll("svg.chart")];
    const heights = [...new Set(charts.flatMap(chart => [...chart.querySelectorAll("text")].map(
      text => Math.round(10 * parseFloat(view.getComputedStyle(text).fontSize) *
        box(chart).width / chart.viewBox.baseVal.width) / 10)))];
    const luminance = colour => {
      const parts = colour.match(/[0-9.]+/g).slice(0, 3).map(part => part / 255).map(
        part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
      return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; };
    const behind = element => {
      for (let at = element; at; at = at.parentElement) {
        const colour = view.getComputedStyle(at).backgroundColor;
        if (colour !== "rgba(0, 0, 0, 0)") return colour; } return "rgb(255, 255, 255)"; };
    const pale = [...page.body.querySelectorAll("p, li, th, td, dt, dd, caption, h1, h2, h3, text")]
      .filter(element => !element.classList.contains("part")).filter(element => {
        const style = view.getComputedStyle(element);
        const pair = [element.tagName === "text" ? style.fill : style.color, behind(element)]
          .map(luminance).sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05) < 4.5; });
    return {widths: [...new Set(charts.map(chart => Math.round(box(chart).width)))],
      heights, pale: pale.map(name), background: view.getComputedStyle(page.body).backgroundColor,
      inner: view.innerWidth, scroll: root.scrollWidth, height: root.scrollHeight,
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


def opened(browser, path, profile, theme="light"):
    """The document after scripts ran, and what the browser logged."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--enable-logging=stderr", f"--user-data-dir={profile}", "--window-size=1500,1000"]
    command += [f"--blink-settings=preferredColorScheme={THEMES[theme]}"]
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


def measured(browser, folder, text, theme="light"):
    frames = framed(folder / "frames.html", text)
    document, errors = opened(browser, frames, folder / "profile", theme)
    (found,) = re.findall(r'<pre id="measured">(.*?)</pre>', document, re.S)
    return json.loads(html.unescape(found)), errors


def check_shown(pages, errors, figures, theme="light"):
    """Nothing is cut off or pale, and all charts have text of one size that can be read."""
    assert not errors
    assert [page["inner"] for page in pages] == list(WIDTHS)
    for page in pages:
        assert page["scroll"] <= page["inner"], page
        assert not page["wide"] + page["cut"] + page["boxes"] + page["hidden"], page
        assert not page["pale"], page["pale"]
        assert set(page["figures"]) == figures
        assert len(page["widths"]) == 1, page["widths"]
        assert max(page["heights"]) - min(page["heights"]) < 0.2, page["heights"]
        assert LEAST_TEXT <= min(page["heights"]) <= 14, page["heights"]
        dark = sum(map(int, re.findall(r"\d+", page["background"]))) < 3 * 128
        assert dark == (theme == "dark")


@pytest.fixture
def audited(whole, audit_record):
    (whole / "private" / "audit.json").write_text(json.dumps(audit_record))
    return whole


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("include_raw", [False, True])
def test_a_run_is_shown_whole(browser, audited, tmp_path, include_raw, theme):
    text = write_report(
        audited, include_raw=include_raw, baseline=0.97, publish_baseline=True
    ).read_text()
    found, errors = measured(browser, tmp_path, text, theme)
    check_shown(found, errors, FIGURES | RAW if include_raw else FIGURES, theme)


@pytest.mark.parametrize("theme", THEMES)
def test_a_comparison_is_shown_whole(browser, by_hand, metric_lines, tmp_path, theme):
    names = ["a", "b", "long_name_" * 12, "d"]
    folders = [
        by_hand(metrics=metric_lines, at=f"run{i}", name=name, runs=(name,), unit=unit)
        for i, (name, unit) in enumerate(zip(names, ["example"] * 3 + ["user"], strict=True))
    ]
    text = write_comparison(folders, tmp_path / "comparison.html").read_text()
    found, errors = measured(browser, tmp_path, text, theme)
    check_shown(found, errors, COMPARED, theme)


def test_one_metric_alone_has_charts_of_the_same_size(browser, by_hand, metric_lines, tmp_path):
    """A single figure in its row must not grow to the width of the page."""
    lines = [{k: v for k, v in line.items() if k != "test_loss"} for line in metric_lines]
    folder = by_hand(metrics=[line | {"epsilon": None} for line in lines], key_is_secret=False)
    found, errors = measured(browser, tmp_path, write_report(folder).read_text())
    check_shown(found, errors, {"accuracy", "mesh-0", "mesh-1"})


def test_a_printed_page_is_light_in_a_dark_theme(browser, audited, tmp_path):
    page = write_report(audited, tmp_path / "page.html", include_raw=True)
    pdf = tmp_path / "page.pdf"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={pdf}"]
    command += ["--blink-settings=preferredColorScheme=0", page.absolute().as_uri()]
    subprocess.run(command, capture_output=True, timeout=300, check=True)
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf.read_bytes(), re.S)
    drawn = b" ".join(filter(None, map(inflated, streams)))
    assert b"1 1 1 rg" in drawn  # white cards
    dark = [int(part, 16) / 255 for part in ("14", "16", "1a")]  # --page of the dark theme
    fills = re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) rg", drawn)
    assert fills and not [f for f in fills if np.allclose(np.asarray(f, float), dark, atol=2e-3)]


def inflated(stream):
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return None


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


def test_the_measure_finds_pale_text_and_charts_of_two_sizes(browser, tmp_path):
    chart = "<svg class=chart viewBox='0 0 100 50' width={0}><text y=20 x=9>a</text></svg>"
    text = "<!doctype html><body><p style='color:#999'>pale</p>"
    text += chart.format(100) + chart.format(200)
    (phone, _), _ = measured(browser, tmp_path, text)
    assert phone["pale"] == ["P pale"] and phone["widths"] == [100, 200]
    assert phone["heights"] == [16, 32]
