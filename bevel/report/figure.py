"""A figure of a report: a chart with its title, legend, caption and description."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from bevel.report.axis import Axis, axis_of
from bevel.report.line_chart import Series, line_chart
from bevel.report.run_files import Line

MOST_POINTS = 400  # of one line
LEAST_POINTS = 20  # of one line where several attempts share the points


@dataclasses.dataclass(frozen=True)
class Figure:
    """A chart with its title and caption. `id` is its id in the HTML page."""

    id: str
    title: str
    svg: str
    caption: str
    series: tuple[Series, ...] = ()

    @property
    def legend(self) -> tuple[Series, ...]:
        """One series per label. Empty if there is only one label."""
        by_label = {series.label: series for series in self.series if series.label}
        return tuple(by_label.values()) if len(by_label) > 1 else ()


def figure(
    id: str, title: str, caption: str, y: Axis, series: Sequence[Series], x: Axis | None = None
) -> Figure:
    """A figure over steps, unless `x` is another axis."""
    x = x or axis_of("step", [step for line in series for step in line.x], include=[0])
    svg = line_chart(id, title, _description(x, y, series), x, y, series)
    return Figure(id, title, svg, caption, tuple(series))


def _description(x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """The content of a chart in a sentence for each label."""
    points: dict[str, list[tuple[float, float]]] = {}
    for line in series:
        found = [point for segment in line.segments() for point in segment]
        points.setdefault(line.label, []).extend(found)
    sentences = [_sentence(label, found, x, y) for label, found in points.items() if found]
    return " ".join([f"Line chart of {y.label} against {x.label}.", *sentences])


def _sentence(label: str, points: list[tuple[float, float]], x: Axis, y: Axis) -> str:
    values = [value for _, value in points]
    (first, begin), (last, end) = points[0], points[-1]
    low, high = min(values), max(values)
    if low == high:
        return f"{label}: {y.in_words(low)}."
    found = f"{label}: from {y.in_words(begin)} at {x.label} {x.in_words(first)}"
    found += f" to {y.in_words(end)} at {x.label} {x.in_words(last)}"
    if {low, high} == {begin, end}:
        return found + "."
    return found + f", between {y.in_words(low)} and {y.in_words(high)}."


def by_attempt(
    lines: Sequence[Line],
    name: str,
    label: str,
    *,
    against: str = "step",
    colour: int = 1,
    dash: int = 0,
    marker: int = 0,
) -> list[Series]:
    """The values of `name`, one series per attempt, because a second attempt repeats steps.

    Lines without a finite number at `name` or `against` are left out. Long series are thinned.
    """
    attempts: dict[Any, list[tuple[float, float, float]]] = {}
    for line in lines:
        value = line.get(name)
        if is_number(value) and is_number(at := line.get(against)):
            attempts.setdefault(line.get("attempt", 0), []).append((line["step"], at, value))
    most = max(LEAST_POINTS, MOST_POINTS // max(1, len(attempts)))
    found = []
    for points in attempts.values():
        _, x, y = zip(*sorted(points), strict=True)
        found.append(thinned(Series(label, x, y, colour, dash, marker), most))
    return found


def thinned(series: Series, max_points: int = MOST_POINTS) -> Series:
    """Keeps the lowest and the highest of neighbouring points, so that peaks stay visible.

    The result has at most `max_points` points, which are points of the series in their order. The
    first and the last one are kept.
    """
    count = len(series.x)
    if count <= max_points:
        return series
    values = np.asarray(series.y, float)
    edges = np.linspace(1, count - 1, max_points // 2).astype(int)
    kept = {0, count - 1}
    for start, stop in itertools.pairwise(edges):
        if stop > start:
            piece = values[start:stop]
            kept |= {int(start + np.argmin(piece)), int(start + np.argmax(piece))}
    order = sorted(kept)
    x, y = [series.x[index] for index in order], [series.y[index] for index in order]
    return dataclasses.replace(series, x=x, y=y)


def flat(line: Line) -> dict[str, Any]:
    """Flattens nested metrics into names joined by slashes."""
    found: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": below for inner, below in flat(value).items()}
        else:
            found[name] = value
    return found


def numbers_of(series: Sequence[Series]) -> list[float]:
    """All finite values of all series."""
    return [float(y) for line in series for y in line.y if y is not None and math.isfinite(y)]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number that a float can hold. JSON may have larger integers."""
    if type(value) not in (int, float) and (  # asked first, because runs have millions of values
        not isinstance(value, int | float) or isinstance(value, bool)
    ):
        return False
    return bool(-sys.float_info.max <= value <= sys.float_info.max)
