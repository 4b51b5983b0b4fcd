"""`Progress`: what a run tells while it goes on, and how its numbers are written in short.

`bevel.training.terminal_progress` shows it on a terminal or as plain lines. To show it elsewhere,
derive from `Progress` and pass an instance as `RunOptions(progress=...)`.
"""

import contextlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bevel.accounting.rounding import shown_epsilon

if TYPE_CHECKING:
    from bevel.accounting import Budget

# Columns of `checkpoint` that are not metrics.
_NOT_METRICS = {"step", "attempt", "delta", "epsilon"}
_RAW_SHOWN = ("loss", "accuracy")


class Progress:
    """Is told what happens in a run, and shows nothing. Override the methods that you need.

    `fit` calls the methods in the first process only, in the thread that called it. What
    `checkpoint` receives is released. What `raw` and `warn` receive is computed from the training
    data without noise, and what `advance` receives shows how fast the run is: neither is private.
    """

    def working(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Surrounds work other than steps, such as 'compiling for batches of 512'."""
        return contextlib.nullcontext()

    def note(self, text: str) -> None:
        """A remark, such as what has changed since the run was started."""

    def begin(self, step: int, steps: int, budget: "Budget | None") -> None:
        """Called before the first step. `step` is the number of steps taken earlier."""

    def advance(self, step: int) -> None:
        """Called after each step with the number of steps taken."""

    def checkpoint(self, metrics: Mapping[str, Any]) -> None:
        """Called with each line of metrics.jsonl, once the checkpoint is charged and on disk."""

    def raw(self, metrics: Mapping[str, Any]) -> None:
        """Called at checkpoints with the raw metrics of the last step. NOT private."""

    def warn(self, text: str) -> None:
        """Called at most once for each thing that looks wrong in the raw metrics. NOT private."""

    def end(self) -> None:
        """Called after the last step, and also if the run fails or is interrupted."""


def released_parts(metrics: Mapping[str, Any], budget: "Budget | None") -> list[str]:
    """The epsilon and the metrics of a checkpoint, in short, the most important first."""
    parts = []
    spent = metrics.get("epsilon")
    if spent is not None:
        of = "" if budget is None else f" of {_rounded_up(budget.epsilon)}"
        parts.append(f"epsilon {_rounded_up(spent)}{of}")
    return parts + [
        f"{name.replace('_', ' ')} {format_number(value)}"
        for name, value in metrics.items()
        if name not in _NOT_METRICS and isinstance(value, int | float)
    ]


def _rounded_up(epsilon: float) -> str:
    return shown_epsilon(epsilon, digits=3, infinite=format_number(math.inf))


def raw_part(raw: Mapping[str, Any]) -> str:
    """The raw metrics that are worth a look, marked as not private. Empty if there are none."""
    shown = [f"{name} {format_number(raw[name])}" for name in _RAW_SHOWN if name in raw]
    return f"not private: {', '.join(shown)}" if shown else ""


def fitting(parts: list[str], width: int, separator: str = ", ") -> str:
    """As many of the first parts as fit into `width` columns. The first one is cut if need be."""
    text = parts[0][:width] if parts else ""
    for part in parts[1:]:
        if len(text) + len(separator) + len(part) > width:
            break
        text += separator + part
    return text


def format_number(value: float | None) -> str:
    value = float(value) if value is not None else math.nan
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "unlimited"
    return f"{value:.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
