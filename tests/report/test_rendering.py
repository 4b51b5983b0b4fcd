"""Templates are in the package, pages are written, and the colours have contrast."""

import re
from importlib import resources

import pytest

from bevel.errors import FixArgumentsError
from bevel.report.rendering import STYLE, render, write_page
from bevel.training.folder import NO_TIME

LIGHT, DARK = "light", "dark"
# Text and what it is on. Lines and bars need 3:1, text needs 4.5:1 (WCAG 2.2, level AA).
TEXT = [("ink", "page"), ("ink", "card"), ("soft", "page"), ("soft", "card"), ("ink", "note-page")]
TEXT += [("alarm", "alarm-page"), *(("on-tint", f"t{tint}") for tint in range(8))]
SHAPES = [(f"s{colour}", "card") for colour in range(1, 7)]


def css():
    return (resources.files("bevel.report") / STYLE).read_text()


def colours(theme):
    """The custom properties of a theme; the dark one overrides the light one."""
    light, dark = re.findall(r":root \{(.*?)\}", css(), re.S)[:2]
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return found | (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark)) if theme == DARK else {})


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_and_shapes_have_contrast(theme):
    found = colours(theme)
    low = {pair: contrast(*map(found.get, pair)) for pair in TEXT}
    assert not {pair: ratio for pair, ratio in low.items() if ratio < 4.5}
    low = {pair: contrast(*map(found.get, pair)) for pair in SHAPES}
    assert not {pair: ratio for pair, ratio in low.items() if ratio < 3}


def test_every_colour_of_text_is_checked():
    """A colour of text that is not in the tables above would not be checked."""
    used = set(re.findall(r"[{;\s](?:color|fill): var\(--([\w-]+)\)", css()))
    checked = {name for pair in TEXT + SHAPES for name in pair}
    assert used <= checked | {"line"}, used  # the track of a bar, whose value is written above it


def test_both_themes_define_the_same_colours():
    light, dark = re.findall(r":root \{(.*?)\}", css(), re.S)[:2]
    names = [set(re.findall(r"--([\w-]+): #", text)) for text in (light, dark)]
    assert names[0] == names[1]


def test_printing_uses_light_colours():
    assert "@media screen and (prefers-color-scheme: dark)" in css()
    assert css().count("prefers-color-scheme") == 1


def test_templates_and_style_are_in_the_package():
    files = {file.name for file in resources.files("bevel.report").iterdir()}
    assert {"page.html", "owner.html", "comparison.html", "parts.html", "page.css"} <= files


def test_a_variable_that_is_missing_is_an_error():
    with pytest.raises(Exception, match="undefined"):
        render("page.html", {})


def test_a_page_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(FixArgumentsError, match=r"cannot be written to .*pass another output"):
        write_page(tmp_path / "nowhere" / "page.html", "text", private=False)


def test_only_released_pages_have_the_time_of_released_files(tmp_path):
    page = write_page(tmp_path / "a.html", "text", private=False, released=tmp_path / "released")
    assert page.stat().st_mtime != NO_TIME
    page = write_page(tmp_path / "a.html", "text", private=False, released=tmp_path)
    assert page.stat().st_mtime == tmp_path.stat().st_mtime == NO_TIME
