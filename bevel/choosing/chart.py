"""Draws the noise against the batch size as a picture."""

import io
import os
from pathlib import Path

from bevel.choosing.proposal import TOLERATED_EXCESS, Proposal
from bevel.errors import FixArgumentsError
from bevel.output_files import write_file

FORMATS = (".svg", ".png", ".pdf")
BLUE, ORANGE, GRAY = "#1f5fa8", "#c8500a", "#777777"


def write_chart(proposal: Proposal, path: str | os.PathLike[str]) -> None:
    """Writes the curve of a proposal, with the proposed batch size marked. Needs matplotlib.

    The format follows from the end of the path: .svg, .png or .pdf. The same proposal always gives
    the same .svg file.
    """
    if not os.fspath(path).endswith(FORMATS):
        raise FixArgumentsError(f"{path} must end with {', '.join(FORMATS)}.")
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    curve, point = proposal.curve, proposal.point
    sizes = [p.batch_size for p in curve.points]
    same = f"{curve.epochs:g} epochs" if curve.epochs else f"{point.steps:,} steps"
    with mpl.rc_context({"svg.hashsalt": "bevel", "font.size": 9, "svg.fonttype": "path"}):
        figure = Figure(figsize=(7.6, 3.1), layout="constrained")
        FigureCanvasAgg(figure)
        per_step, over_run = figure.subplots(1, 2)
        per_step.plot(sizes, [p.noise_per_step for p in curve.points], "o-", color=BLUE, ms=4)
        per_step.plot([point.batch_size], [point.noise_per_step], "D", color=ORANGE, ms=8)
        per_step.set_yscale("log")
        per_step.set_title("noise of one step")
        per_step.set_ylabel("noise multiplier / batch size")
        excess = [100 * curve.excess(p) for p in curve.points]
        over_run.plot(sizes, excess, "o-", color=BLUE, ms=4)
        over_run.plot([point.batch_size], [100 * curve.excess(point)], "D", color=ORANGE, ms=8)
        over_run.axhline(100 * TOLERATED_EXCESS, color=GRAY, lw=1, ls="--")
        over_run.set_title("noise over the whole run")
        over_run.set_ylabel("above the least possible, %")
        over_run.set_ylim(bottom=0)
        over_run.annotate(
            f"{point.batch_size:,.10g}",
            (point.batch_size, 100 * curve.excess(point)),
            xytext=(6, 8),
            textcoords="offset points",
            color=ORANGE,
        )
        for axes in (per_step, over_run):
            axes.set_xscale("log", base=2)
            axes.set_xlabel(f"batch size ({same})")
            axes.xaxis.set_major_locator(LogLocator(base=4, numticks=8))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="#e4e4e4", lw=0.6)
        budget = proposal.request.epsilon, proposal.choices["delta"].value
        count = f"{proposal.request.num_units:,} {proposal.request.unit}s"
        figure.suptitle(f"epsilon {budget[0]:g}, delta {budget[1]:g}, {count}", fontsize=9)
        kind = os.fspath(path).rpartition(".")[2]
        drawn, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else None
        figure.savefig(drawn, format=kind, metadata=metadata)
    write_file(Path(path), drawn.getvalue())
