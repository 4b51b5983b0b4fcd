"""Draws horizontal bars with their names and values, as an SVG of the width of all charts."""

from collections.abc import Sequence

from bevel.report.line_chart import WIDTH, svg, text

ROW, NAME_HEIGHT, BAR_HEIGHT = 44, 22, 12


def bar_chart(id: str, title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """A complete SVG with one bar for each (name, value, value in words), in the given order."""
    most = max((value for _, value, _ in bars), default=0) or 1
    parts = []
    for number, (name, value, words) in enumerate(bars):
        top = number * ROW
        parts.append(text(name, 2, top + NAME_HEIGHT - 5, "start", "name"))
        parts.append(text(words, WIDTH - 2, top + NAME_HEIGHT - 5, "end"))
        for style, width in (("track", WIDTH - 4), ("bar", (WIDTH - 4) * max(0.0, value) / most)):
            parts.append(
                f'<rect class="{style}" x="2" y="{top + NAME_HEIGHT}" width="{width:.1f}" '
                f'height="{BAR_HEIGHT}" rx="2"/>'
            )
    described = "; ".join(f"{name}: {words}" for name, _, words in bars)
    description = f"Bar chart. {described}."
    return svg(id, title, description, WIDTH, max(1, len(bars)) * ROW, "".join(parts))
