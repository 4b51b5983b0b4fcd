"""Shows the progress of a run: two lines on a terminal, otherwise one plain line per checkpoint.

A terminal shows this, at any width; parts that do not fit are left out, the last ones first:

    step 40/100 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 0:12 left
    epsilon 2.31 of 4, test accuracy 0.913 | not private: loss 0.52

While something else happens, such as compilation, a line says what it is and for how long. Raw
metrics and warnings are marked "not private", because no epsilon covers them. Plain lines, which
often end in a log that others read, show no raw metrics.
"""

import collections
import contextlib
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from bevel.training.progress import Progress, fitting, raw_part, released_parts

if TYPE_CHECKING:
    from bevel.accounting import Budget

PLAIN_WIDTH = 80
SHORTEST_BAR = 8
# Work that took less is not worth a line afterwards.
_WORTH_A_LINE = 5.0
# Steps from which the time that is left is estimated.
_RECENT = 50


def progress_of(shown: bool | Progress | None, file: TextIO | None = None) -> Progress:
    """The progress that an option asks for: False shows nothing, None and True show it."""
    if isinstance(shown, Progress):
        return shown
    if shown is False:
        return Progress()
    file = file or sys.stdout
    return TerminalProgress(file) if Console(file=file).is_terminal else PlainProgress(file)


class PlainProgress(Progress):
    """Writes lines of at most 80 columns. A reader that goes away does not stop the run."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file, self._steps = file or sys.stdout, 0
        self._budget: Budget | None = None

    def begin(self, step: int, steps: int, budget: "Budget | None") -> None:
        self._steps, self._budget = steps, budget

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        self._print(f"{what} ...")
        yield

    def note(self, text: str) -> None:
        self._print("\n".join(wrapped_note(text, PLAIN_WIDTH)))

    def warn(self, text: str) -> None:
        self.note(f"warning (not private): {text}")

    def checkpoint(self, metrics: Mapping[str, Any]) -> None:
        parts = [f"step {metrics['step']}/{self._steps}", *released_parts(metrics, self._budget)]
        self._print(fitting(parts, PLAIN_WIDTH))

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            print(text, file=self._file, flush=True)


class TerminalProgress(Progress):
    """Shows a bar, the time left, epsilon and metrics on two lines that are updated in place."""

    def __init__(self, file: TextIO | None = None, *, console: Console | None = None) -> None:
        file = file or sys.stdout
        self._console = console or Console(file=file, highlight=False)
        # What user code prints meanwhile appears above the bar.
        own = file is sys.stdout
        self._live = Live(self, console=self._console, refresh_per_second=8, redirect_stdout=own)
        self._work: tuple[str, float] | None = None
        self._running = False
        self._step = self._steps = 0
        self._budget: Budget | None = None
        self._released: list[str] = []
        self._raw = ""

    def begin(self, step: int, steps: int, budget: "Budget | None") -> None:
        self._step, self._steps, self._budget = step, steps, budget
        self._begun = (step, time.monotonic())
        self._recent = collections.deque([self._begun], maxlen=_RECENT)
        self._running = step < steps
        if self._running:
            self._start()

    def advance(self, step: int) -> None:
        self._step = step
        self._recent.append((step, time.monotonic()))

    def checkpoint(self, metrics: Mapping[str, Any]) -> None:
        self._released = released_parts(metrics, self._budget)

    def raw(self, metrics: Mapping[str, Any]) -> None:
        self._raw = raw_part(metrics)

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            for line in wrapped_note(text, self._console.width):
                self._console.print(Text(line))

    def warn(self, text: str) -> None:
        self.note(f"warning (not private): {text}")

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        outer, begun = self._work, time.monotonic()
        self._work = (what, begun)
        self._start()
        try:
            yield
        finally:
            self._work = outer
            if not self._running and outer is None:
                self._stop(leave=False)
        if time.monotonic() - begun >= _WORTH_A_LINE:
            self.note(f"{what}: {time.monotonic() - begun:.1f} s")

    def end(self) -> None:
        if self._running:
            self._stop(leave=True)
        self._running = False

    def _start(self) -> None:
        with contextlib.suppress(OSError):
            self._live.start(refresh=True)

    def _stop(self, *, leave: bool) -> None:
        self._live.transient = not leave
        with contextlib.suppress(OSError):
            self._live.stop()

    # What the lines say.

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        if self._running:
            yield self._bar_line(width, ascii_only=options.ascii_only)
        if self._work is not None:
            yield _work_line(*self._work, width, ascii_only=options.ascii_only)
        elif self._running:
            text = fitting(self._released, width)
            raw = f" | {self._raw}" if text and self._raw else self._raw
            line = Text(text)
            if len(text) + len(raw) <= width:
                line.append(raw, "dim")
            yield line

    def _bar_line(self, width: int, *, ascii_only: bool) -> Text:
        before, after = f"step {self._step}/{self._steps} ", f" {self._time()}"
        room = width - len(before) - len(after)
        if room < SHORTEST_BAR:
            return Text(fitting([before.strip(), after.strip()], width))
        done = room * self._step // max(1, self._steps)
        full, empty = ("#", "-") if ascii_only else ("━", "━")
        bar = [(full * done, "green"), (empty * (room - done), "bright_black")]
        return Text.assemble(before, *bar, after, no_wrap=True)

    def _time(self) -> str:
        """The time that is left or, after the last step, the time that the steps took."""
        now = time.monotonic()
        if self._step >= self._steps:
            return f"in {_clock(now - self._begun[1])}"
        step, since = self._recent[0]
        if self._step == step:
            return "-:-- left"
        seconds = max(self._recent[-1][1] - since, 0.0) / (self._step - step)
        return f"{_clock(seconds * (self._steps - self._step))} left"


def _work_line(what: str, begun: float, width: int, *, ascii_only: bool) -> Text:
    seconds = time.monotonic() - begun
    frames = "-\\|/" if ascii_only else "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    frame, taken = frames[int(8 * seconds) % len(frames)], f" {seconds:.0f} s"
    return Text(f"{frame} {what[: max(0, width - 2 - len(taken))]}{taken}"[:width], no_wrap=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def wrapped_note(text: str, width: int) -> list[str]:
    """The lines of a note of at most `width` columns. A long word, such as a path, stays whole."""
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, width, subsequent_indent="  ", **options)
