import re

from bevel.report.bar_chart import bar_chart
from bevel.report.line_chart import WIDTH


def test_bars_are_as_long_as_their_values():
    drawn = bar_chart("t", "time", [("compiling", 4.0, "4 s"), ("steps", 1.0, "1 s")])
    widths = [float(w) for w in re.findall(r'class="bar"[^>]*width="([\d.]+)"', drawn)]
    assert widths == [WIDTH - 4, (WIDTH - 4) / 4]
    assert "Bar chart. compiling: 4 s; steps: 1 s." in drawn


def test_nothing_and_zeros_can_be_drawn():
    for bars in ([], [("a", 0.0, "0 s")]):
        assert bar_chart("t", "time", bars).startswith("<svg")


def test_names_are_escaped():
    assert "<b>" not in bar_chart("t", "<b>", [("<b>", 1.0, "<b>")])
