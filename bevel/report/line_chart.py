"""Draws line charts as small SVGs that use the style sheet of the page.

The SVGs are written directly rather than by a plotting library, so that their text stays text, they
follow the reader's light or dark theme, and they stay readable on a phone.
"""

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

from bevel.report.rounding import power_of_ten

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 78, 14, 14, 46
MOST_LETTERS = 30  # of an axis label
COLOURS = 4  # classes s1 to s4 of the style sheet

Number = float | None
Point = tuple[float, float]
At = Callable[[Point], Point]  # from values to SVG coordinates


@dataclasses.dataclass(frozen=True)
class Series:
    """One line. Values that are None or not finite leave gaps."""

    label: str
    x: Sequence[float]
    y: Sequence[Number]
    colour: int = 1
    dashed: bool = False
    marked: bool = False  # whether to draw a dot at each point

    def segments(self) -> list[list[Point]]:
        """The points, split into segments at the gaps."""
        segments: list[list[Point]] = [[]]
        for x, y in zip(self.x, self.y, strict=True):
            if y is None or not math.isfinite(y):
                segments.append([])
            else:
                segments[-1].append((float(x), float(y)))
        return [segment for segment in segments if segment]


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis: its label and range."""

    label: str
    low: float
    high: float
    log: bool = False

    def fraction(self, value: float) -> float:
        """The position of a value on the axis, from 0 at the low end to 1 at the high end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            every = max(1, math.ceil((last - first + 1) / 6))
            return [10.0**power for power in range(first, last + 1, every)]
        step = round_step((self.high - self.low) / 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= least * (1 - 1e-9))


def axis_of(
    label: str, values: Sequence[float], *, include: Sequence[float] = (), log: bool = False
) -> Axis:
    """An axis whose range covers all values and those in `include`."""
    if log and min(values) > 0:
        low, high = (math.log10(end) for end in (min(values), max(values)))
        return Axis(
            label, 10 ** math.floor(low), 10 ** max(math.ceil(high), math.floor(low) + 1), True
        )
    low, high = min([*values, *include]), max([*values, *include])
    if high == low:
        pad = abs(high) / 10 or 1.0
        return Axis(label, low - pad, high + pad)
    pad = (high - low) * 0.05
    return Axis(label, low if low in include else low - pad, high + pad * (high not in include))


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """A complete SVG. Screen readers read `title`."""

    def at(point: Point) -> Point:
        across = LEFT + x.fraction(point[0]) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - y.fraction(point[1]) * (HEIGHT - TOP - BOTTOM)
        return across, down

    parts = [*_grid(x, y), *(shape for line in series for shape in _lines(line, at))]
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'aria-label="{html.escape(title, quote=True)}">{"".join(parts)}</svg>'
    )


def _lines(series: Series, at: At) -> list[str]:
    css_class = f"line s{series.colour}" + (" dashed" if series.dashed else "")
    shapes = []
    for segment in series.segments():
        points = [at(point) for point in segment]
        if len(points) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            shapes.append(f'<polyline class="{css_class}" points="{path}"/>')
        if series.marked or len(points) == 1:
            shapes += [
                f'<circle class="dot s{series.colour}" cx="{a:.1f}" cy="{b:.1f}" r="2.6"/>'
                for a, b in points
            ]
    return shapes


def _grid(x: Axis, y: Axis) -> list[str]:
    """The grid lines, tick labels and axis labels."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    shapes = []
    for tick in y.ticks():
        down = bottom - y.fraction(tick) * (bottom - TOP)
        shapes.append(f'<path class="rule" d="M{LEFT} {down:.1f}H{right}"/>')
        shapes.append(_text(shown(tick), LEFT - 7, down + 4, "end"))
    for tick in x.ticks():
        across = LEFT + x.fraction(tick) * (right - LEFT)
        shapes.append(f'<path class="axis" d="M{across:.1f} {bottom}v4"/>')
        shapes.append(_text(shown(tick), across, bottom + 17, "middle"))
    middle = (TOP + bottom) / 2
    shapes.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    shapes.append(_text(_shortened(x.label), (LEFT + right) / 2, HEIGHT - 8, "middle", "name"))
    transform = f' transform="rotate(-90 14 {middle:g})"'
    shapes.append(_text(_shortened(y.label), 14, middle, "middle", "name", transform))
    return shapes


def _text(words: str, x: float, y: float, anchor: str, style: str = "tick", turn: str = "") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}'
    return f'<text class="{style}" {attributes}>{html.escape(words)}</text>'


def shown(value: float) -> str:
    """The label of a tick."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.6g}".replace("-", "−")
    digits, power = f"{value:.2e}".split("e")
    factor = f"{float(digits):g}·".replace("-", "−")
    return ("" if factor == "1·" else factor) + power_of_ten(int(power))


def _shortened(label: str) -> str:
    """A label cut to a length that fits beside an axis."""
    return label if len(label) <= MOST_LETTERS else label[: MOST_LETTERS - 1] + "…"
