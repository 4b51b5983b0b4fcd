"""SVG: well formed, on its own, and nothing is drawn outside or over another thing."""

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from bevel.inspection.svg import LETTER, colour
from bevel.sharding import make_mesh, place, visualize

MESH = make_mesh("a=2,b=2,c=2")
TREE = {
    "<odd> & 'name'": np.zeros((4, 4, 4), np.float32),
    "vector": np.zeros(8, np.float32),
    "whole": np.zeros((3, 3), np.float32),
}
DRAWING = visualize(place(TREE, MESH, [("<*", P("a", "b", "c")), ("v*", P("b")), ("*", P())]))
TAG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(name="root")
def fixture_root():
    return ElementTree.fromstring(DRAWING.svg)


def test_labels_are_those_of_the_text(root):
    ids = [x.text for x in root.iter(f"{TAG}text") if x.get("class") == "ids"]
    cells = [cell.strip() for cell in re.findall(r"[\d,-]+ +(?=│)", str(DRAWING))]
    assert ids == cells
    titles = [x.text for x in root.iter(f"{TAG}text") if x.get("class") == "words"]
    assert titles[0].startswith("<odd> & 'name' 4x4x4")


def test_everything_is_inside_and_apart(root):
    _, _, width, height = map(float, root.get("viewBox").split())
    boxes = []
    for x in root.iter(f"{TAG}rect"):
        if x.get("class") == "cell":
            left, top, w, h = (float(x.get(name)) for name in ("x", "y", "width", "height"))
            boxes.append((left, top, left + w, top + h))
    for x in root.iter(f"{TAG}text"):
        if x.get("class") == "words":
            left, base = float(x.get("x")), float(x.get("y"))
            boxes.append((left, base - 10, left + len(x.text) * LETTER, base + 3))
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)


def test_it_needs_nothing_else_and_touches_nothing_else():
    text = DRAWING.svg
    assert not re.search(r"<script|href|url\(|@import|id=", text)
    style = re.search(r"<style>(.*)</style>", text)[1]
    selectors = re.findall(r"([^{}]+)\{", style.replace("@media(prefers-color-scheme:dark){", ""))
    assert all(s.strip("}").startswith(".bevel-sharding") for s in selectors)
    assert len(text) < 8000


def luminance(rgb):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def hexadecimal(text):
    text = "".join(2 * c for c in text) if len(text) == 3 else text
    return [int(text[i : i + 2], 16) / 255 for i in (0, 2, 4)]


def test_text_can_be_read_in_both_themes():
    """The contrast that WCAG asks of small text is 4.5."""
    style = re.search(r"<style>(.*)</style>", DRAWING.svg)[1]
    light, dark = style.split("@media(prefers-color-scheme:dark)")
    for theme in (light, dark):
        page, words = (
            hexadecimal(re.search(rf"\.{name}\{{fill:#(\w+)", theme)[1])
            for name in ("page", "words")
        )
        assert contrast(page, words) > 4.5
    import colorsys

    for device in range(64):
        hue, saturation, light = map(int, re.findall(r"\d+", colour((device,))))
        cell = colorsys.hls_to_rgb(hue / 360, light / 100, saturation / 100)
        assert contrast(cell, hexadecimal("111")) > 4.5
    assert colour(()) != colour((1,))
