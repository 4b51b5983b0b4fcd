"""What a run shows on the terminal: a bar, or plain lines where there is no terminal.

Between two checkpoints only the count of steps moves. What is not private is said to be so.
"""

import math
import time
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

RAW_SHOWN = (
    "loss",
    "accuracy",
    "clipped_fraction",
    "signal_to_noise",
    "not_finite",
    "examples_per_second",
)
NOT_SHOWN = {"step", "attempt", "delta", "epsilon"}


class Progress:
    """Shows steps as they are taken, and what is released at checkpoints.

    Args:
      steps: of the whole run.
      show: False for silence.
      budget: epsilon that may be spent, if there is a limit.
    """

    def __init__(
        self,
        steps: int,
        begun: int = 0,
        *,
        show: bool = True,
        budget: float | None = None,
        file: TextIO | None = None,
    ) -> None:
        self.steps, self.budget, self._show = steps, budget, show
        self._console = Console(file=file, highlight=False, soft_wrap=True)
        self._bar: Bar | None = None
        self._begun, self._since = begun, time.perf_counter()
        if show and self._console.is_terminal:
            self._bar = Bar(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("", total=steps, completed=begun, text="")

    def note(self, text: str) -> None:
        """A line for the user."""
        if self._show:
            self._console.print(text, markup=False)

    def advance(self, step: int) -> None:
        if self._bar:
            self._bar.update(self._task, completed=step)

    def released(self, metrics: Mapping[str, Any], raw: Mapping[str, Any] | None) -> None:
        """Shows what a checkpoint released, and, marked as such, what is not private."""
        text = _shown(metrics, self.budget)
        if raw:
            seen = ", ".join(f"{name} {number(raw[name])}" for name in RAW_SHOWN if name in raw)
            text += f" | not private: {seen}"
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


def _shown(metrics: Mapping[str, Any], budget: float | None) -> str:
    """The metrics of a checkpoint, as text."""
    parts = []
    spent = metrics.get("epsilon")
    if spent is not None:
        left = "" if budget is None else f", {number(max(0.0, budget - spent))} left"
        parts.append(f"epsilon {number(spent)}{left}")
    parts += [
        f"{name.replace('_', ' ')} {number(value)}"
        for name, value in metrics.items()
        if name not in NOT_SHOWN and isinstance(value, int | float)
    ]
    return ", ".join(parts)


def number(value: Any) -> str:
    value = float(value) if value is not None else math.nan
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "unlimited"
    return f"{value:.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
