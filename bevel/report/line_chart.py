"""Draws line charts as small SVGs that use the style sheet of the page.

The SVGs are written directly rather than by a plotting library, so that their text stays text, they
follow the reader's light or dark theme, and screen readers can read them. All charts have the same
size in units of the SVG and the same width on the page, so their text has one size.
"""

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

from bevel.report.axis import Axis, shown

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 78, 18, 34, 50
MOST_LETTERS = 40  # of an axis label
COLOURS, DASHES, MARKERS = 6, 4, 4  # classes s1 to s6, d1 to d3 of the style sheet; see _marker
MOST_MARKED = 40  # points; of longer lines, FEW are marked
FEW = 9

Number = float | None
Point = tuple[float, float]
At = Callable[[Point], Point]  # from values to SVG coordinates


@dataclasses.dataclass(frozen=True)
class Series:
    """One line. Values that are None or not finite leave gaps.

    Attributes:
      colour: 1 to COLOURS.
      dash: 0 for a solid line; 1, 2 and 3 are dashed, dotted and both.
      marker: 0 for none; 1 to MARKERS are a circle, a square, a triangle and a diamond.
      filled: fill the area between the line and the horizontal axis.
    """

    label: str
    x: Sequence[float]
    y: Sequence[Number]
    colour: int = 1
    dash: int = 0
    marker: int = 0
    filled: bool = False

    def segments(self) -> list[list[Point]]:
        """The points, split into segments at the gaps."""
        segments: list[list[Point]] = [[]]
        for x, y in zip(self.x, self.y, strict=True):
            if y is None or not math.isfinite(y):
                segments.append([])
            else:
                segments[-1].append((float(x), float(y)))
        return [segment for segment in segments if segment]

    @property
    def line_class(self) -> str:
        return f"line s{self.colour}" + (f" d{self.dash}" if self.dash else "")

    @property
    def swatch(self) -> str:
        """The line as the legend shows it. Its label follows, so screen readers skip it."""
        marks = _marker(self, (15.0, 6.0)) if self.marker else ""
        return (
            '<svg class="swatch" viewBox="0 0 30 12" width="30" height="12" aria-hidden="true">'
            f'<path class="{self.line_class}" d="M1 6H29"/>{marks}</svg>'
        )


def svg(id: str, title: str, description: str, width: int, height: int, parts: str) -> str:
    """A chart that screen readers read as its title and description."""
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {width} {height}" '
        f'aria-labelledby="{id}-title {id}-desc"><title id="{id}-title">{html.escape(title)}'
        f'</title><desc id="{id}-desc">{html.escape(description)}</desc>{parts}</svg>'
    )


def line_chart(
    id: str, title: str, description: str, x: Axis, y: Axis, series: Sequence[Series]
) -> str:
    """A complete SVG."""

    def at(point: Point) -> Point:
        across = LEFT + x.fraction(point[0]) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - y.fraction(point[1]) * (HEIGHT - TOP - BOTTOM)
        return across, down

    parts = [*_grid(x, y), *(shape for line in series for shape in _lines(line, at))]
    return svg(id, title, description, WIDTH, HEIGHT, "".join(parts))


def _lines(series: Series, at: At) -> list[str]:
    """The shapes of one series: a line per segment, with its markers."""
    shapes, marked = [], []
    for segment in series.segments():
        points = [at(point) for point in segment]
        if len(points) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            if series.filled:
                ends = f"{points[-1][0]:.1f},{HEIGHT - BOTTOM} {points[0][0]:.1f},{HEIGHT - BOTTOM}"
                shapes.append(f'<polygon class="area s{series.colour}" points="{path} {ends}"/>')
            shapes.append(f'<polyline class="{series.line_class}" points="{path}"/>')
        else:
            marked += points
        if series.marker and len(points) > 1:
            marked += points if len(points) <= MOST_MARKED else _some(points, series.colour)
    return shapes + [_marker(series, point) for point in marked]


def _some(points: list[Point], offset: int) -> list[Point]:
    """A few points, at other places for every colour so that markers do not hide each other."""
    apart = len(points) / FEW
    return [points[int((number + offset / (COLOURS + 1)) * apart)] for number in range(FEW)]


def _marker(series: Series, point: Point) -> str:
    x, y = point
    style = f'class="dot s{series.colour}"'
    match series.marker:
        case 2:
            return f'<path {style} d="M{x - 3:.1f} {y - 3:.1f}h6v6h-6z"/>'
        case 3:
            return f'<path {style} d="M{x:.1f} {y - 4:.1f}l4 7h-8z"/>'
        case 4:
            return f'<path {style} d="M{x:.1f} {y - 4.4:.1f}l4.4 4.4l-4.4 4.4l-4.4 -4.4z"/>'
    return f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _grid(x: Axis, y: Axis) -> list[str]:
    """The grid lines, tick labels and axis labels."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    shapes = []
    labels, power = y.tick_labels()
    for tick, label in zip(y.ticks(), labels, strict=True):
        down = bottom - y.fraction(tick) * (bottom - TOP)
        shapes.append(f'<path class="rule" d="M{LEFT} {down:.1f}H{right}"/>')
        shapes.append(text(label, LEFT - 8, down + 4.5, "end"))
    for tick in x.ticks():
        across, anchor = LEFT + x.fraction(tick) * (right - LEFT), "middle"
        shapes.append(f'<path class="axis" d="M{across:.1f} {bottom}v5"/>')
        if across > right - 20 and len(shown(tick)) > 3:  # centred, it would be cut off
            across, anchor = WIDTH - 2, "end"
        shapes.append(text(shown(tick), across, bottom + 20, anchor))
    shapes.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    shapes.append(text(_shortened(x.label), (LEFT + right) / 2, HEIGHT - 8, "middle", "name"))
    shapes.append(text(_shortened(y.label) + power, 2, 16, "start", "name"))
    return shapes


def text(words: str, x: float, y: float, anchor: str, style: str = "tick") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{style}" {attributes}>{html.escape(words)}</text>'


def _shortened(label: str) -> str:
    """A label cut to a length that fits. The title of the figure has the full name."""
    return label if len(label) <= MOST_LETTERS else label[: MOST_LETTERS - 1] + "…"
