"""Ctrl-C and SIGTERM, as a wish to stop: the step is finished and saved first."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunInterrupted(KeyboardInterrupt):
    """A run ended early by a signal, after its step was finished.

    Attributes:
      state: the `TrainingState` that it ended with. Without a folder nothing is saved: pass the
        state to `fit` to go on. A run in a folder has saved it: start it again to go on. Its steps
        since the last checkpoint are not charged yet, so release nothing of this state.
      exit_code: what a shell expects: 130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, number: int, state: Any, steps: int, *, saved: bool) -> None:
        how = (
            "the state is saved: start again to go on"
            if saved
            else "nothing is saved, because the run has no folder: go on with "
            "fit(data, error.state), error being this exception"
        )
        super().__init__(
            f"stopped by signal {number} after {int(state.step)} of {steps} steps; {how}"
        )
        self.state, self.exit_code = state, 128 + number


class StopRequest:
    """The signal that came, if one did."""

    number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None


@contextlib.contextmanager
def interrupts() -> Iterator[StopRequest]:
    """Within, the first signal is a wish; a second one does what it does elsewhere."""
    wish, before = StopRequest(), dict[int, Any]()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        before.clear()

    def note(number: int, frame: Any) -> None:
        wish.number = number
        restore()

    if threading.current_thread() is threading.main_thread():  # only there can handlers be set
        for number in SIGNALS:
            before[number] = signal.signal(number, note)
    try:
        yield wish
    finally:
        restore()
