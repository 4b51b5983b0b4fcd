"""The figures of the owner's page, which are computed from the training data without noise."""

from collections.abc import Sequence

from bevel.report.axis import axis_of
from bevel.report.figure import MOST_POINTS, Figure, by_attempt, figure, numbers_of
from bevel.report.line_chart import Series
from bevel.report.run_files import Line

QUANTILES = ("0.1", "0.5", "0.9")
SIGNAL = (
    "The norm of the clipped sum, divided by the expected norm of the noise that was added to it. "
    "Below 1, a single step is mostly noise, and progress comes from averaging over many steps."
)
CLIPPED = (
    "The share of gradients that were longer than the clip norm. Near 1, every gradient has the "
    "same length; near 0, the clip norm could be smaller, and with it the noise."
)


def owner_figures(rows: Sequence[Line]) -> list[Figure]:
    """Signal against noise, clipping, norms, batch sizes, training loss and speed, over steps."""
    norms = _norms(rows)
    found = [
        _over_steps(
            rows, "raw-signal", "Signal against noise", "signal_to_noise", SIGNAL, (0, 1), at=1
        ),
        _over_steps(rows, "raw-clipped", "Clipped fraction", "clipped_fraction", CLIPPED, (0, 1)),
        norms,
        _over_steps(
            rows, "raw-batch", "Batch sizes", "batch_size", "Examples in each batch.", (0,)
        ),
        _over_steps(rows, "raw-loss", "Training loss", "loss", "Mean loss of each batch."),
        _over_steps(
            rows,
            "raw-speed",
            "Examples per second",
            "examples_per_second",
            "At each checkpoint, for the steps since the last one.",
            (0,),
        ),
    ]
    return [drawn for drawn in found if drawn is not None]


def _over_steps(
    rows: Sequence[Line],
    id: str,
    title: str,
    name: str,
    caption: str,
    include: tuple[int, ...] = (),
    at: float | None = None,
) -> Figure | None:
    """The values of `name` over steps, with a reference line at `at`. None if there are none."""
    label = name.replace("_", " ")
    series = by_attempt(rows, name, label)
    if not series:
        return None
    if at is not None:
        steps = [float(step) for line in series for step in (line.x[0], line.x[-1])]
        ends = [min(steps), max(steps)]
        series.append(Series("as much noise as signal", ends, [at, at], 3, dash=1))
    axis = axis_of(label, numbers_of(series), include=include)
    return figure(id, title, caption + _thinning(series), axis, series)


def _norms(rows: Sequence[Line]) -> Figure | None:
    quantiles = [_quantiles(row) for row in rows]
    series = by_attempt(quantiles, "0.9", "0.9 quantile", colour=2, marker=2)
    series += by_attempt(quantiles, "0.5", "median", colour=1, marker=1)
    series += by_attempt(quantiles, "0.1", "0.1 quantile", colour=3, marker=3)
    if not series:
        return None
    series += by_attempt(rows, "clip_norm", "clip norm", colour=4, dash=1)
    return figure(
        "raw-norms",
        "Gradient norms against the clip norm",
        "Quantiles of the norms of each batch before clipping. What is above the clip norm is "
        "shortened to it." + _thinning(series),
        axis_of("norm before clipping", numbers_of(series), log=True),
        series,
    )


def _quantiles(row: Line) -> Line:
    quantiles = row.get("norm_quantiles")
    if not isinstance(quantiles, list) or len(quantiles) != len(QUANTILES):
        return {}
    found = dict(zip(QUANTILES, quantiles, strict=True))
    return {"step": row["step"], "attempt": row.get("attempt", 0), **found}


def _thinning(series: Sequence[Series]) -> str:
    """Says that points were left out, if they were."""
    most = max(len(line.x) for line in series)
    return " The lowest and highest of neighbouring steps." if most > 0.9 * MOST_POINTS else ""
