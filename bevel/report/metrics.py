"""The metrics that the evaluation returned at each checkpoint: their names, values and figures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bevel.accounting.rounding import shown_epsilon
from bevel.report.axis import Axis, axis_of, spoken
from bevel.report.figure import Figure, by_attempt, figure, flat, is_number, numbers_of
from bevel.report.line_chart import COLOURS, MARKERS, Series
from bevel.report.privacy_figures import EPSILON_AXIS
from bevel.report.run_files import Line, RunFiles

if TYPE_CHECKING:
    from bevel.report.baseline import Baseline

# Fields of metrics.jsonl that are not metrics of the evaluation. The speed can depend on the data,
# so only the owner's page shows it.
RUN_FIELDS = {"step", "epsilon", "delta", "attempt", "examples_per_second"}
MOST_LINES = 6  # accuracies in one figure
MOST_METRICS = 8  # other metrics with figures of their own


def metric_names(metrics: Sequence[Line]) -> list[str]:
    """The names of the numbers that the evaluation returned, in order of appearance."""
    names: dict[str, None] = {}
    for line in metrics:
        found = flat(line)
        names |= {name: None for name, value in found.items() if is_number(value)}
    return [name for name in names if name not in RUN_FIELDS]


def is_accuracy(name: str) -> bool:
    return "acc" in name.lower()


def headline_metric(names: Sequence[str]) -> str | None:
    """The metric that stands for all: the first accuracy, or else the first of all."""
    return next(filter(is_accuracy, names), next(iter(names), None))


def last_metrics(metrics: Sequence[Line]) -> list[tuple[str, float]]:
    """The last value of each metric of the evaluation."""
    last: dict[str, float] = {}
    for line in reversed(metrics):
        found = flat(line)
        last |= {n: float(v) for n, v in found.items() if n not in last and is_number(v)}
    return [(name, last[name]) for name in metric_names(metrics)]


def shown_metric(name: str, value: float) -> str:
    """A metric with five digits, or an accuracy in percent."""
    if is_accuracy(name) and 0 <= value <= 1:
        return f"{100 * value:.3g} %"
    return f"{value:.5g}"


def evaluation(run: RunFiles, baseline: "Baseline", with_epsilon: bool) -> list[Figure]:
    """All accuracies in one figure and each other metric in its own, against steps and epsilon.

    Args:
      with_epsilon: whether to draw the figures against epsilon. Pass False if no epsilon holds.
    """
    lines = [flat(line) for line in run.metrics]
    names = metric_names(run.metrics)
    accuracies = [name for name in names if is_accuracy(name)]
    others = [name for name in names if not is_accuracy(name)]
    groups = [("accuracy", "Accuracy", accuracies)] if accuracies else []
    groups += [(f"metric-{i}", name, [name]) for i, name in enumerate(others[:MOST_METRICS])]
    figures = []
    for id, title, shown in groups:
        against = ["step", "epsilon"] if with_epsilon else ["step"]
        for axis in against:
            figures.append(_metric_figure(id, title, lines, shown, baseline, axis))
    return [drawn for drawn in figures if drawn is not None]


def without_figure(names: Sequence[str]) -> int:
    """How many metrics are in the table only."""
    accuracies = sum(map(is_accuracy, names))
    others = len(names) - accuracies
    return max(0, accuracies - MOST_LINES) + max(0, others - MOST_METRICS)


def _metric_figure(
    id: str,
    title: str,
    lines: Sequence[Line],
    names: Sequence[str],
    baseline: "Baseline",
    against: str,
) -> Figure | None:
    series, references = [], []
    for i, name in enumerate(names[:MOST_LINES]):
        style = {"colour": 1 + i % COLOURS, "marker": 1 + i % MARKERS}
        series += by_attempt(lines, name, name, against=against, **style)
        if (value := baseline.value(name)) is not None:
            references.append((i, name, value))
    if not series:
        return None
    epsilons = against == "epsilon"
    x = axis_of(
        EPSILON_AXIS if epsilons else "step",
        [float(at) for line in series for at in line.x],
        include=[0],
        in_words=shown_epsilon if epsilons else spoken,
    )
    series += [_reference(i, name, value, x) for i, name, value in references]
    return figure(
        f"{id}-epsilon" if epsilons else id,
        f"{title} against {'ε' if epsilons else 'steps'}",
        "What each amount of privacy bought: one point for each checkpoint."
        if epsilons
        else "At each checkpoint, on public or held-out data.",
        axis_of(title.lower(), numbers_of(series)),
        series,
        x,
    )


def _reference(number: int, name: str, value: float, x: Axis) -> Series:
    """The non-private baseline: a horizontal line over the whole figure."""
    label = f"{name} without privacy: {shown_metric(name, value)}"
    return Series(label, [x.low, x.high], [value, value], 1 + number % COLOURS, dash=1)
