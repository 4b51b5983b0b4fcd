"""Shows progress on the terminal as a bar, or as plain lines if the output is not a terminal.

Between two checkpoints only the number of steps changes. Raw metrics are marked "not private",
because no epsilon covers them.
"""

import math
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

RAW_SHOWN = ["loss", "accuracy", "clipped_fraction", "signal_to_noise", "not_finite"]
RAW_SHOWN += ["examples_per_second"]
NOT_SHOWN = {"step", "attempt", "delta", "epsilon"}


class Progress:
    """Shows the number of steps taken, and the metrics released at checkpoints.

    Args:
      steps: the number of steps of the run.
      start: the first step.
      show: False shows nothing.
      budget: the epsilon that may be spent, if there is a limit.
    """

    def __init__(
        self,
        steps: int,
        start: int = 0,
        *,
        show: bool = True,
        budget: float | None = None,
        file: TextIO | None = None,
    ) -> None:
        self.steps, self.budget, self._show = steps, budget, show
        self._console = Console(file=file, highlight=False, soft_wrap=True)
        self._bar: Bar | None = None
        if show and self._console.is_terminal:
            self._bar = Bar(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=steps, completed=start, text="")

    def note(self, text: str) -> None:
        if self._show:
            self._console.print(text, markup=False)

    def advance(self, step: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=step)

    def released(self, metrics: Mapping[str, Any], raw: Mapping[str, Any] | None) -> None:
        """Shows the released metrics of a checkpoint, and its raw metrics, marked as such."""
        text = _format_metrics(metrics, self.budget)
        if raw:
            shown = [f"{name} {format_number(raw[name])}" for name in RAW_SHOWN if name in raw]
            text += f" | not private: {', '.join(shown)}"
        if self._bar:
            self._bar.update(self._task, completed=metrics["step"], text=text)
        elif self._show:
            self.note(f"step {metrics['step']}/{self.steps} | {text}")

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bar:
            self._bar.stop()


def _format_metrics(metrics: Mapping[str, Any], budget: float | None) -> str:
    parts = []
    spent = metrics.get("epsilon")
    if spent is not None:
        left = "" if budget is None else f", {format_number(max(0.0, budget - spent))} left"
        parts.append(f"epsilon {format_number(spent)}{left}")
    parts += [
        f"{name.replace('_', ' ')} {format_number(value)}"
        for name, value in metrics.items()
        if name not in NOT_SHOWN and isinstance(value, int | float)
    ]
    return ", ".join(parts)


def format_number(value: float | None) -> str:
    value = float(value) if value is not None else math.nan
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "unlimited"
    return f"{value:.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
