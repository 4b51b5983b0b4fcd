import math
import re

import pytest

from bevel.report.axis import Axis
from bevel.report.line_chart import (
    BOTTOM,
    COLOURS,
    FEW,
    HEIGHT,
    LEFT,
    MARKERS,
    MOST_LETTERS,
    RIGHT,
    TOP,
    WIDTH,
    Series,
    line_chart,
)


def chart(x, y, series, title="t", description="d"):
    return line_chart("id", title, description, x, y, series)


def test_points_are_drawn_at_their_values():
    series = Series("a", [0, 5, 10], [1.0, 2.0, 3.0])
    drawn = chart(Axis("x", 0, 10), Axis("y", 1, 3), [series])
    (points,) = re.findall(r'<polyline [^>]*points="([^"]*)"', drawn)
    places = [tuple(map(float, point.split(","))) for point in points.split()]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    middle = ((LEFT + right) / 2, (TOP + bottom) / 2)
    assert places == [(LEFT, bottom), middle, (right, TOP)]


def test_gaps_split_a_line_and_single_points_are_dots():
    series = Series("a", range(5), [1.0, 2.0, None, math.nan, 3.0])
    assert series.segments() == [[(0, 1), (1, 2)], [(4, 3)]]
    drawn = chart(Axis("x", 0, 4), Axis("y", 0, 3), [series])
    assert drawn.count("<polyline") == 1 and drawn.count("<circle") == 1


def test_a_screen_reader_gets_the_title_and_the_description():
    drawn = chart(Axis("x", 0, 1), Axis("y", 0, 1), [], '"<b>', "<i>&")
    assert 'role="img"' in drawn and 'aria-labelledby="id-title id-desc"' in drawn
    assert '<title id="id-title">&quot;&lt;b&gt;</title>' in drawn
    assert '<desc id="id-desc">&lt;i&gt;&amp;</desc>' in drawn


def test_words_are_escaped():
    drawn = chart(Axis("<x>", 0, 1), Axis("y&", 0, 1), [], '"<b>')
    assert "<b>" not in drawn and "&lt;x&gt;" in drawn and "y&amp;" in drawn


def test_lines_are_told_apart_without_colour():
    """By dashes and markers, on the chart and in the legend."""
    looks = set()
    for number in range(MARKERS):
        series = Series("a", [0, 1], [0, 1], colour=1, dash=number % 4, marker=1 + number)
        drawn = chart(Axis("x", 0, 1), Axis("y", 0, 1), [series])
        dashes = re.findall(r"line s1( d\d)?", drawn)[0]
        (shape,) = {
            re.sub(r"[\d.]+ [\d.]+", "", s) for s in re.findall(r'd="([^"]*z)"', drawn)
        } or {"o"}
        looks.add((dashes, shape))
        assert re.findall(r"line s1( d\d)?", series.swatch)[0] == dashes
        assert ("<circle" in series.swatch) == (number == 0)
        assert 'aria-hidden="true"' in series.swatch
    assert len(looks) == MARKERS


@pytest.mark.parametrize("colour", range(1, COLOURS + 1))
def test_long_lines_have_a_few_markers_within_them(colour):
    for count in (41, 400):
        series = Series("a", range(count), [0.0] * count, colour, marker=1)
        drawn = chart(Axis("x", 0, count), Axis("y", -1, 1), [series])
        assert drawn.count("<circle") == FEW
    drawn = chart(Axis("x", 0, 3), Axis("y", -1, 1), [Series("a", [0, 1, 2], [0, 0, 0], marker=1)])
    assert drawn.count("<circle") == 3


def test_an_area_reaches_down_to_the_axis():
    series = Series("a", [0, 10], [1.0, 3.0], filled=True)
    drawn = chart(Axis("x", 0, 10), Axis("y", 1, 3), [series])
    (points,) = re.findall(r'<polygon [^>]*points="([^"]*)"', drawn)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    assert points.split()[2:] == [f"{right:.1f},{bottom}", f"{LEFT:.1f},{bottom}"]


def test_long_labels_are_shortened():
    drawn = chart(Axis("x" * 200, 0, 1), Axis("y", 0, 1), [])
    assert "x" * (MOST_LETTERS - 1) + "…<" in drawn and "x" * MOST_LETTERS not in drawn


def test_a_long_number_at_the_right_edge_ends_within_the_chart():
    drawn = chart(Axis("step", 0, 100_000), Axis("y", 0, 1), [])
    (anchor,) = re.findall(r'text-anchor="(\w+)">100000<', drawn)
    assert anchor == "end"
