"""Draws the two pictures of an audit, from its record."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bevel.errors import FixArgumentsError

_HELD_IN, _HELD_OUT, _BOUND, _GREY = "#0072b2", "#d55e00", "#222222", "#999999"
_FORMATS = (".svg", ".png", ".pdf")


def plot_audit(record: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Writes one picture: the histogram of scores, and the ROC against the guarantee.

    Args:
      record: what `AuditResult.to_dict` or `read_audit` returns.
      path: an .svg, .png or .pdf file. It shows private values.
    """
    import matplotlib
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix not in _FORMATS:
        raise FixArgumentsError(
            f"{path} does not end in {', '.join(_FORMATS)}: pass a path such as 'audit.svg'."
        )
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    scores, rates = figure.subplots(1, 2)
    _draw_scores(scores, record)
    _draw_rates(rates, record)
    verdict = "passed" if record["passed"] else "FAILED"
    figure.suptitle(
        f"audit {verdict}: promised epsilon {record['promised']:.3g}, measured at least "
        f"{record['bound']:.3g}, at delta {record['delta']:g}",
        fontsize=11,
    )
    # Text stays text, and the file is the same at every call.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bevel"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _draw_scores(axes: Any, record: Mapping[str, Any]) -> None:
    bins = record["histogram"]
    for name, label, colour in (
        ("held_out", "held out", _HELD_OUT),
        ("held_in", "held in", _HELD_IN),
    ):
        axes.stairs(bins[name], bins["edges"], color=colour, fill=True, alpha=0.35)
        axes.stairs(bins[name], bins["edges"], color=colour, label=label)
    axes.set(xlabel="score of a canary", ylabel="canaries", title="Can the attack tell them apart?")
    axes.title.set_fontsize(10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_rates(axes: Any, record: Mapping[str, Any]) -> None:
    roc, promise = record["roc"], record["promise"]
    smallest = 0.5 / max(1, record["canaries"] - record["held_in"])
    axes.plot(promise["fpr"], promise["tpr"], color=_BOUND, label="most that the guarantee allows")
    axes.plot(roc["fpr"], roc["tpr"], color=_HELD_IN, drawstyle="steps-post", label="the attack")
    axes.plot([smallest, 1], [smallest, 1], color=_GREY, linestyle=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(smallest, 1), ylim=(smallest, 1.3))
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
    axes.set_title("The attack against the guarantee", fontsize=10)
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
