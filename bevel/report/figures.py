"""The figures of a run: what it cost, how good the model is, and, apart, what is not private."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from bevel.report.line_chart import COLOURS, Axis, Series, axis_of, line_chart
from bevel.report.meaning import guess_bound
from bevel.report.rounding import percent_up, shown_delta
from bevel.report.run_files import Line, RunFiles

if TYPE_CHECKING:
    from bevel.accounting.ledger.spent import Spent

# What a line of metrics.jsonl has that is not of the evaluation. A speed depends on the data and is
# shown to the owner only.
OF_THE_RUN = {"step", "epsilon", "delta", "attempt", "examples_per_second"}
MOST_POINTS = 400
RATES = (0.001, 0.01, 0.1)


@dataclasses.dataclass(frozen=True)
class _Figure:
    """A drawing with its words. `id` is where a link or a test finds it."""

    id: str
    title: str
    svg: str
    caption: str
    series: tuple[Series, ...]

    @property
    def legend(self) -> tuple[Series, ...]:
        """One of each label; nothing where there is only one."""
        found = {series.label: series for series in self.series if series.label}
        return tuple(found.values()) if len(found) > 1 else ()


def _figure(
    id: str, title: str, caption: str, x: Axis, y: Axis, series: Sequence[Series]
) -> _Figure:
    return _Figure(
        id, title, line_chart(f"{title}. {caption}", x, y, series), caption, tuple(series)
    )


# What may be released.


def epsilon_over_steps(run: RunFiles, spent: "Spent | None") -> _Figure | None:
    """Epsilon at each checkpoint, and the budget; None if there was no checkpoint."""
    known = [line for line in run.metrics if is_number(line.get("epsilon"))]
    if not known:
        return None
    series = _by_attempt(known, "epsilon", "spent, of all runs in the ledger")
    last = max(float(run.record.get("steps") or 0), *(float(line["step"]) for line in known))
    budget = spent.terms.budget if spent else None
    values = _numbers_of(series)
    if budget is not None:
        values.append(budget.epsilon)
        ends = [budget.epsilon] * 2
        series.append(Series("budget, fixed beforehand", [0, last], ends, 2, dashed=True))
    delta = f" at δ = {shown_delta(spent.delta)}" if spent else ""
    return _figure(
        "epsilon",
        "Epsilon over steps",
        f"Spent up to each checkpoint{delta}, as recorded in metrics.jsonl.",
        Axis("step", 0, last or 1),
        axis_of("epsilon", values, include=[0]),
        series,
    )


def trade_off(spent: "Spent | None") -> tuple[_Figure, list[tuple[str, str]]] | None:
    """The curve that no attack is above, and some of its points; None if there is no bound."""
    if spent is None or not spent.runs or math.isinf(spent.epsilon):
        return None
    fpr = np.unique(np.concatenate([np.linspace(0, 1, 101), np.geomspace(1e-4, 1, 81), RATES]))
    tpr, exact = attack_bound(spent, fpr)
    diagonal = Series("guessing", [0, 1], [0, 1], 3, dashed=True)
    series = [Series("no attack is above this", list(fpr), list(tpr), 1), diagonal]
    budget = spent.terms.budget
    if budget is not None:
        promised = implied_bound(budget.epsilon, budget.delta, fpr)
        series.insert(
            1, Series("by the budget's ε and δ alone", list(fpr), list(promised), 2, True)
        )
    how = (
        "Computed from the whole privacy profile of what was charged. A guess at even odds is "
        f"right at most {percent_up(best_guess(spent, fpr, tpr))} of the time by this curve."
        if exact
        else "Computed from ε and δ alone, because no accountant can compose the charges, or they "
        "are bounded by sampling."
    )
    drawn = _figure(
        "trade-off",
        "What an attacker can reach",
        f"An attacker tests for the presence of one {spent.terms.unit}. The curve bounds the rate "
        f"of true positives at each rate of false positives, in real-number arithmetic. {how}",
        Axis("false-positive rate", 0, 1),
        Axis("true-positive rate", 0, 1),
        series,
    )
    points = [
        (f"{rate:g}", f"{min(1.0, math.ceil(tpr[np.searchsorted(fpr, rate)] * 1e4) / 1e4):g}")
        for rate in RATES
    ]
    return drawn, points


def attack_bound(spent: "Spent", fpr: np.ndarray) -> tuple[np.ndarray, bool]:
    """An upper bound on TPR, and whether it comes from all epsilons or from one."""
    from bevel.accounting import trade_off_curve
    from bevel.accounting.mixture_events import MixtureDpEvent

    if len(spent.events) != 1 or isinstance(spent.events[0], MixtureDpEvent):
        return implied_bound(spent.epsilon, spent.delta, fpr), False
    (event,) = spent.events
    relation = spent.terms.relation
    return trade_off_curve(event, neighboring_relation=relation, fpr=fpr)[1], True


def best_guess(spent: "Spent", fpr: np.ndarray, tpr: np.ndarray) -> Decimal:
    """The largest `(TPR + 1 - FPR) / 2` on a curve, also between its points.

    TPR grows with FPR, so between two points it is at most that of the right one. Where that is
    too coarse, epsilon and delta alone say more.
    """
    on_curve = Decimal(float((1 + np.max(tpr[1:] - fpr[:-1])) / 2))
    return min(on_curve, guess_bound(Decimal(spent.epsilon), Decimal(spent.delta)))


def implied_bound(epsilon: float, delta: float, fpr: np.ndarray) -> np.ndarray:
    """The TPR that (epsilon, delta) allows."""
    low = np.exp(min(epsilon, 700.0)) * fpr + delta
    high = 1 - np.exp(-epsilon) * (1 - fpr - delta)
    return np.minimum(1.0, np.minimum(low, high))


def evaluation(run: RunFiles) -> list[_Figure]:
    """One figure for all accuracies, and one for each other metric of the evaluation."""
    names = _metric_names(run.metrics)
    accuracies = [name for name in names if "acc" in name.lower()]
    found = []
    if accuracies:
        found.append(_metric_figure("accuracy", "Accuracy", run, accuracies))
    others = [name for name in names if name not in accuracies]
    found += [_metric_figure(f"metric-{i}", name, run, [name]) for i, name in enumerate(others)]
    return found


def _metric_figure(id: str, title: str, run: RunFiles, names: list[str]) -> _Figure:
    lines = [_flat(line) for line in run.metrics]
    series = []
    for i, name in enumerate(names):
        known = [line for line in lines if name in line]
        series += _by_attempt(known, name, name, colour=1 + i % COLOURS)
    values = _numbers_of(series)
    caption = "At each checkpoint, on public or held-out data."
    if id == "accuracy":
        caption += (
            f" Last: {', '.join(f'{name} {_last_value(lines, name):.4g}' for name in names)}."
        )
    steps = axis_of("step", [step for line in series for step in line.x], include=[0])
    return _figure(id, title, caption, steps, axis_of(title.lower(), values), series)


def _metric_names(metrics: Sequence[Line]) -> list[str]:
    """The numbers that the evaluation returned, in the order in which they appear."""
    found: dict[str, None] = {}
    for line in map(_flat, metrics):
        found |= {name: None for name, value in line.items() if is_number(value)}
    return [name for name in found if name not in OF_THE_RUN]


def last_metrics(run: RunFiles) -> list[tuple[str, str]]:
    """The last value of each metric of the evaluation."""
    lines = [_flat(line) for line in run.metrics]
    return [(name, f"{_last_value(lines, name):.5g}") for name in _metric_names(run.metrics)]


def _last_value(lines: Sequence[Line], name: str) -> float:
    return next(float(line[name]) for line in reversed(lines) if is_number(line.get(name)))


# What is not private.


def raw_figures(rows: Sequence[Line]) -> list[_Figure]:
    """Training loss, clipped fraction, norms, batch sizes and speed, over steps."""
    return list(_raw_figures(rows))


def _raw_figures(rows: Sequence[Line]) -> Iterator[_Figure]:
    for id, title, names, fixed in (
        ("raw-loss", "Training loss", {"loss": "loss"}, ()),
        ("raw-clipped", "Clipped fraction", {"clipped_fraction": "share of gradients"}, (0, 1)),
        ("raw-batch", "Batch sizes", {"batch_size": "batch size"}, (0,)),
    ):
        series = [s for name in names for s in _over_steps(rows, name, names[name])]
        if series:
            yield _raw_figure(id, title, next(iter(names.values())), series, fixed)
    norms = _over_steps([_with_quantiles(row) for row in rows], "0.9", "0.9 quantile", 2)
    norms += _over_steps([_with_quantiles(row) for row in rows], "0.5", "median", 1)
    norms += _over_steps([_with_quantiles(row) for row in rows], "0.1", "0.1 quantile", 3)
    if norms:
        norms += _over_steps(rows, "clip_norm", "clip norm", 4, dashed=True)
        title = "Gradient norms against the clip norm"
        yield _raw_figure("raw-norms", title, "norm before clipping", norms, (), log=True)
    speed = _over_steps(rows, "examples_per_second", "examples per second")
    if speed:
        steps = axis_of("step", [step for line in speed for step in line.x], include=[0])
        rate = axis_of("examples per second", _numbers_of(speed), include=[0])
        caption = "At each checkpoint, for the steps since the last one."
        yield _figure("raw-speed", "Examples per second", caption, steps, rate, speed)


def _raw_figure(
    id: str, title: str, label: str, series: list[Series], fixed: tuple[int, ...], log: bool = False
) -> _Figure:
    values = _numbers_of(series)
    each = max(math.ceil(len(line.x)) for line in series)
    caption = "At every step." if each < MOST_POINTS else f"Means over steps, {each} points."
    steps = axis_of("step", [step for line in series for step in line.x], include=[0])
    return _figure(
        id, title, caption, steps, axis_of(label, values, include=fixed, log=log), series
    )


def _with_quantiles(row: Line) -> Line:
    quantiles = row.get("norm_quantiles")
    if not isinstance(quantiles, list) or len(quantiles) != 3:
        return row
    return {**row, **dict(zip(("0.1", "0.5", "0.9"), quantiles, strict=True))}


def _over_steps(
    rows: Sequence[Line], name: str, label: str, colour: int = 1, dashed: bool = False
) -> list[Series]:
    known = [row for row in rows if is_number(row.get(name))]
    return [
        dataclasses.replace(thinned(series), dashed=dashed, marked=False)
        for series in _by_attempt(known, name, label, colour)
    ]


# Common to both.


def _by_attempt(lines: Sequence[Line], name: str, label: str, colour: int = 1) -> list[Series]:
    """A line for each attempt: a second one goes back to a step that was taken before."""
    attempts: dict[int, list[Line]] = {}
    for line in lines:
        attempts.setdefault(line.get("attempt", 0), []).append(line)
    found = []
    for several in attempts.values():
        ordered = sorted(several, key=lambda line: line["step"])
        x, y = [line["step"] for line in ordered], [line[name] for line in ordered]
        found.append(Series(label, x, y, colour, marked=len(ordered) <= 40))
    return found


def thinned(series: Series, most: int = MOST_POINTS) -> Series:
    """Means of neighbouring points, so that a page stays small."""
    count = len(series.x)
    if count <= most:
        return series
    pieces = np.array_split(np.arange(count), most)
    y = np.asarray(series.y, float)
    return dataclasses.replace(
        series,
        x=[series.x[int(piece[0])] for piece in pieces],
        y=[float(y[piece].mean()) for piece in pieces],
    )


def _flat(line: Line) -> dict[str, Any]:
    """Nested metrics by their path."""
    found: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": below for inner, below in _flat(value).items()}
        else:
            found[name] = value
    return found


def _numbers_of(series: Sequence[Series]) -> list[float]:
    """All values that are drawn."""
    return [float(y) for line in series for y in line.y if y is not None and math.isfinite(y)]


def is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)
