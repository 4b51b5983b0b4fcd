"""Lines on labelled axes, as a small SVG whose colours are those of the page around it.

Figures are drawn by hand and not by a plotting library: their text is text, they follow the
reader's light or dark theme through the page's style sheet, and they stay readable on a phone.
"""

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

from bevel.report.rounding import power_of_ten

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 78, 14, 14, 46
MOST_LETTERS = 30  # of the name of an axis
COLOURS = 4  # classes s1 to s4 of the style sheet

Number = float | None
Point = tuple[float, float]
At = Callable[[Point], Point]  # from values to places in the drawing


@dataclasses.dataclass(frozen=True)
class Series:
    """One line. Values that are None, or not finite, are gaps."""

    label: str
    x: Sequence[float]
    y: Sequence[Number]
    colour: int = 1
    dashed: bool = False
    marked: bool = False  # a dot at each point, for there are few

    def points(self) -> list[list[Point]]:
        """The stretches between gaps."""
        stretches: list[list[Point]] = [[]]
        for x, y in zip(self.x, self.y, strict=True):
            if y is None or not math.isfinite(y):
                stretches.append([])
            else:
                stretches[-1].append((float(x), float(y)))
        return [stretch for stretch in stretches if stretch]


@dataclasses.dataclass(frozen=True)
class Axis:
    """A scale: what it measures, from where to where."""

    label: str
    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one."""
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
    """The next of 1, 2, 5, 10, 20, ... from `least` on."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * part for part in (1, 2, 5, 10) if power * part >= least * (1 - 1e-9))


def axis_of(
    label: str,
    values: Sequence[float],
    *,
    include: Sequence[float] = (),
    log: bool = False,
) -> Axis:
    """An axis with room for all values, and for those in `include`."""
    if log and min(values) > 0:
        low, high = (math.log10(end) for end in (min(values), max(values)))
        return Axis(
            label, 10 ** math.floor(low), 10 ** max(math.ceil(high), math.floor(low) + 1), True
        )
    low, high = min([*values, *include]), max([*values, *include])
    if high == low:
        room = abs(high) / 10 or 1.0
        return Axis(label, low - room, high + room)
    room = (high - low) * 0.05
    return Axis(label, low if low in include else low - room, high + room * (high not in include))


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """An SVG of its own; `title` is what a screen reader says."""

    def at(point: Point) -> Point:
        across = LEFT + x.share(point[0]) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - y.share(point[1]) * (HEIGHT - TOP - BOTTOM)
        return across, down

    parts = [*_grid(x, y), *(drawn for line in series for drawn in _lines(line, at))]
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'aria-label="{html.escape(title, quote=True)}">{"".join(parts)}</svg>'
    )


def _lines(series: Series, at: At) -> list[str]:
    look = f"line s{series.colour}" + (" dashed" if series.dashed else "")
    found = []
    for stretch in series.points():
        places = [at(point) for point in stretch]
        if len(places) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
            found.append(f'<polyline class="{look}" points="{path}"/>')
        if series.marked or len(places) == 1:
            found += [
                f'<circle class="dot s{series.colour}" cx="{a:.1f}" cy="{b:.1f}" r="2.6"/>'
                for a, b in places
            ]
    return found


def _grid(x: Axis, y: Axis) -> list[str]:
    """Rules, numbers and names of both axes."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    found = []
    for tick in y.ticks():
        down = bottom - y.share(tick) * (bottom - TOP)
        found.append(f'<path class="rule" d="M{LEFT} {down:.1f}H{right}"/>')
        found.append(_text(shown(tick), LEFT - 7, down + 4, "end"))
    for tick in x.ticks():
        across = LEFT + x.share(tick) * (right - LEFT)
        found.append(f'<path class="axis" d="M{across:.1f} {bottom}v4"/>')
        found.append(_text(shown(tick), across, bottom + 17, "middle"))
    middle = (TOP + bottom) / 2
    found.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    found.append(_text(_shortened(x.label), (LEFT + right) / 2, HEIGHT - 8, "middle", "name"))
    turned = f' transform="rotate(-90 14 {middle:g})"'
    found.append(_text(_shortened(y.label), 14, middle, "middle", "name", turned))
    return found


def _text(words: str, x: float, y: float, anchor: str, look: str = "tick", turned: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}'
    return f'<text class="{look}" {place}>{html.escape(words)}</text>'


def shown(value: float) -> str:
    """A number on an axis."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.6g}".replace("-", "−")
    digits, power = f"{value:.2e}".split("e")
    factor = f"{float(digits):g}·".replace("-", "−")
    return ("" if factor == "1·" else factor) + power_of_ten(int(power))


def _shortened(label: str) -> str:
    """A name that fits beside an axis."""
    return label if len(label) <= MOST_LETTERS else label[: MOST_LETTERS - 1] + "…"
