"""The figures of a report: epsilon, the trade-off curve, metrics, and raw training figures."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from bevel.report.line_chart import COLOURS, Axis, Series, axis_of, line_chart
from bevel.report.meaning import guess_bound
from bevel.report.rounding import percent_up, shown_delta
from bevel.report.run_files import Line, RunFiles

if TYPE_CHECKING:
    from bevel.accounting.ledger.spent import Spent

# Fields of metrics.jsonl that are not metrics of the evaluation. The speed can depend on the data,
# so only the owner's page shows it.
RUN_FIELDS = {"step", "epsilon", "delta", "attempt", "examples_per_second"}
MOST_POINTS = 400
RATES = (0.001, 0.01, 0.1)


@dataclasses.dataclass(frozen=True)
class _Figure:
    """A chart with its title and caption. `id` is its id in the HTML page."""

    id: str
    title: str
    svg: str
    caption: str
    series: tuple[Series, ...]

    @property
    def legend(self) -> tuple[Series, ...]:
        """One series per label. Empty if there is only one label."""
        by_label = {series.label: series for series in self.series if series.label}
        return tuple(by_label.values()) if len(by_label) > 1 else ()


def _figure(
    id: str, title: str, caption: str, y: Axis, series: Sequence[Series], x: Axis | None = None
) -> _Figure:
    """A figure over steps, unless `x` is another axis."""
    x = x or axis_of("step", [step for line in series for step in line.x], include=[0])
    svg = line_chart(f"{title}. {caption}", x, y, series)
    return _Figure(id, title, svg, caption, tuple(series))


# Figures of the public page.


def epsilon_over_steps(run: RunFiles, spent: "Spent | None") -> _Figure | None:
    """Epsilon at each checkpoint and the budget, or None if no epsilon was recorded."""
    lines = [line for line in run.metrics if is_number(line.get("epsilon"))]
    if not lines:
        return None
    series = _by_attempt(lines, "epsilon", "spent by all runs in the ledger")
    last = max(float(run.record.get("steps") or 0), *(float(line["step"]) for line in lines))
    budget = spent.terms.budget if spent else None
    values = _numbers_of(series)
    if budget is not None:
        values.append(budget.epsilon)
        limit = [budget.epsilon] * 2
        series.append(Series("budget, fixed beforehand", [0, last], limit, 2, dashed=True))
    delta = f" at δ = {shown_delta(spent.delta)}" if spent else ""
    return _figure(
        "epsilon",
        "Epsilon over steps",
        f"Spent up to each checkpoint{delta}, as recorded in metrics.jsonl.",
        axis_of("epsilon", values, include=[0]),
        series,
        Axis("step", 0, last or 1),
    )


def trade_off(spent: "Spent | None") -> tuple[_Figure, list[tuple[str, str]]] | None:
    """The curve that no attack exceeds, and some of its points. None if there is no bound."""
    if spent is None or not spent.runs or math.isinf(spent.epsilon):
        return None
    fpr = np.unique(np.concatenate([np.linspace(0, 1, 101), np.geomspace(1e-4, 1, 81), RATES]))
    tpr, exact = attack_bound(spent, fpr)
    diagonal = Series("guessing", [0, 1], [0, 1], 3, dashed=True)
    series = [Series("no attack exceeds this", list(fpr), list(tpr), 1), diagonal]
    budget = spent.terms.budget
    if budget is not None:
        allowed = implied_bound(budget.epsilon, budget.delta, fpr)
        series.insert(1, Series("budget's ε and δ alone", list(fpr), list(allowed), 2, True))
    how = (
        "Computed from the whole privacy profile of what was charged. A guess at even odds is "
        f"right at most {percent_up(best_guess(spent, fpr, tpr))} of the time by this curve."
        if exact
        else "Computed from ε and δ alone, because no accountant can compose the charges, or they "
        "are bounded by Monte Carlo sampling."
    )
    figure = _figure(
        "trade-off",
        "What an attacker can achieve",
        f"An attacker tests for the presence of one {spent.terms.unit}. The curve bounds the rate "
        f"of true positives at each rate of false positives, in real-number arithmetic. {how}",
        Axis("true-positive rate", 0, 1),
        series,
        Axis("false-positive rate", 0, 1),
    )
    points = [
        (f"{rate:g}", f"{min(1.0, math.ceil(tpr[np.searchsorted(fpr, rate)] * 1e4) / 1e4):g}")
        for rate in RATES
    ]
    return figure, points


def attack_bound(spent: "Spent", fpr: np.ndarray) -> tuple[np.ndarray, bool]:
    """An upper bound on the TPR, and whether it uses the whole privacy profile or one epsilon."""
    from bevel.accounting import trade_off_curve
    from bevel.accounting.mixture_events import MixtureDpEvent

    if len(spent.events) != 1 or isinstance(spent.events[0], MixtureDpEvent):
        return implied_bound(spent.epsilon, spent.delta, fpr), False
    (event,) = spent.events
    relation = spent.terms.relation
    return trade_off_curve(event, neighboring_relation=relation, fpr=fpr)[1], True


def best_guess(spent: "Spent", fpr: np.ndarray, tpr: np.ndarray) -> Decimal:
    """An upper bound on `(TPR + 1 - FPR) / 2` along a curve, including between its points.

    TPR grows with FPR, so between two points it is at most the TPR of the right one. Where the
    points are too coarse for that, the bound from epsilon and delta alone is smaller.
    """
    on_curve = Decimal(float((1 + np.max(tpr[1:] - fpr[:-1])) / 2))
    return min(on_curve, guess_bound(Decimal(spent.epsilon), Decimal(spent.delta)))


def implied_bound(epsilon: float, delta: float, fpr: np.ndarray) -> np.ndarray:
    """The largest TPR that (epsilon, delta) allows at each FPR."""
    low = np.exp(min(epsilon, 700.0)) * fpr + delta
    high = 1 - np.exp(-epsilon) * (1 - fpr - delta)
    return np.minimum(1.0, np.minimum(low, high))


def evaluation(run: RunFiles) -> list[_Figure]:
    """One figure for all accuracies, and one for each other metric of the evaluation."""
    names = _metric_names(run.metrics)
    accuracies = [name for name in names if "acc" in name.lower()]
    figures = [_metric_figure("accuracy", "Accuracy", run, accuracies)] if accuracies else []
    others = [name for name in names if name not in accuracies]
    return figures + [
        _metric_figure(f"metric-{i}", name, run, [name]) for i, name in enumerate(others)
    ]


def _metric_figure(id: str, title: str, run: RunFiles, names: list[str]) -> _Figure:
    lines = [_flat(line) for line in run.metrics]
    series = []
    for i, name in enumerate(names):
        with_metric = [line for line in lines if name in line]
        series += _by_attempt(with_metric, name, name, colour=1 + i % COLOURS)
    values = _numbers_of(series)
    caption = "At each checkpoint, on public or held-out data."
    if id == "accuracy":
        caption += (
            f" Last: {', '.join(f'{name} {_last_value(lines, name):.4g}' for name in names)}."
        )
    return _figure(id, title, caption, axis_of(title.lower(), values), series)


def _metric_names(metrics: Sequence[Line]) -> list[str]:
    """The names of the numbers that the evaluation returned, in order of appearance."""
    names: dict[str, None] = {}
    for line in map(_flat, metrics):
        names |= {name: None for name, value in line.items() if is_number(value)}
    return [name for name in names if name not in RUN_FIELDS]


def last_metrics(run: RunFiles) -> list[tuple[str, str]]:
    """The last value of each metric of the evaluation."""
    lines = [_flat(line) for line in run.metrics]
    return [(name, f"{_last_value(lines, name):.5g}") for name in _metric_names(run.metrics)]


def _last_value(lines: Sequence[Line], name: str) -> float:
    return next(float(line[name]) for line in reversed(lines) if is_number(line.get(name)))


# Figures of the owner's page, which is not private.


def raw_figures(rows: Sequence[Line]) -> list[_Figure]:
    """Training loss, clipped fraction, batch sizes, gradient norms and speed, over steps."""
    figures = []
    for id, title, name, label, include in (
        ("raw-loss", "Training loss", "loss", "loss", ()),
        ("raw-clipped", "Clipped fraction", "clipped_fraction", "share of gradients", (0, 1)),
        ("raw-batch", "Batch sizes", "batch_size", "batch size", (0,)),
    ):
        if series := _over_steps(rows, name, label):
            figures.append(_raw_figure(id, title, label, series, include))
    with_quantiles = [_with_quantiles(row) for row in rows]
    norms = _over_steps(with_quantiles, "0.9", "0.9 quantile", 2)
    norms += _over_steps(with_quantiles, "0.5", "median", 1)
    norms += _over_steps(with_quantiles, "0.1", "0.1 quantile", 3)
    if norms:
        norms += _over_steps(rows, "clip_norm", "clip norm", 4, dashed=True)
        title = "Gradient norms against the clip norm"
        figures.append(_raw_figure("raw-norms", title, "norm before clipping", norms, log=True))
    if speed := _over_steps(rows, "examples_per_second", "examples per second"):
        rate = axis_of("examples per second", _numbers_of(speed), include=[0])
        caption = "At each checkpoint, for the steps since the last one."
        figures.append(_figure("raw-speed", "Examples per second", caption, rate, speed))
    return figures


def _raw_figure(
    id: str,
    title: str,
    label: str,
    series: list[Series],
    include: tuple[int, ...] = (),
    log: bool = False,
) -> _Figure:
    points = max(len(line.x) for line in series)
    caption = "At every step." if points < MOST_POINTS else f"Means over steps, {points} points."
    values = axis_of(label, _numbers_of(series), include=include, log=log)
    return _figure(id, title, caption, values, series)


def _with_quantiles(row: Line) -> Line:
    quantiles = row.get("norm_quantiles")
    if not isinstance(quantiles, list) or len(quantiles) != 3:
        return row
    return {**row, **dict(zip(("0.1", "0.5", "0.9"), quantiles, strict=True))}


def _over_steps(
    rows: Sequence[Line], name: str, label: str, colour: int = 1, dashed: bool = False
) -> list[Series]:
    with_value = [row for row in rows if is_number(row.get(name))]
    return [
        dataclasses.replace(thinned(series), dashed=dashed, marked=False)
        for series in _by_attempt(with_value, name, label, colour)
    ]


def _by_attempt(lines: Sequence[Line], name: str, label: str, colour: int = 1) -> list[Series]:
    """One series per attempt, because a second attempt repeats earlier steps."""
    attempts: dict[int, list[Line]] = {}
    for line in lines:
        attempts.setdefault(line.get("attempt", 0), []).append(line)
    series = []
    for attempt in attempts.values():
        ordered = sorted(attempt, key=lambda line: line["step"])
        x, y = [line["step"] for line in ordered], [line[name] for line in ordered]
        series.append(Series(label, x, y, colour, marked=len(ordered) <= 40))
    return series


def thinned(series: Series, max_points: int = MOST_POINTS) -> Series:
    """Replaces neighbouring points by their mean, so that the page stays small."""
    count = len(series.x)
    if count <= max_points:
        return series
    pieces = np.array_split(np.arange(count), max_points)
    values = np.asarray(series.y, float)
    x = [series.x[int(piece[0])] for piece in pieces]
    y = [float(values[piece].mean()) for piece in pieces]
    return dataclasses.replace(series, x=x, y=y)


def _flat(line: Line) -> dict[str, Any]:
    """Flattens nested metrics into names joined by slashes."""
    flat: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{inner}": below for inner, below in _flat(value).items()}
        else:
            flat[name] = value
    return flat


def _numbers_of(series: Sequence[Series]) -> list[float]:
    """All finite values of all series."""
    return [float(y) for line in series for y in line.y if y is not None and math.isfinite(y)]


def is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)
