"""Ctrl-C and SIGTERM, as a wish to stop: the step is finished and saved first."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunInterrupted(KeyboardInterrupt):
    """A run ended early by a signal, after it saved its state. Start it again to go on.

    `exit_code` is what a shell expects: 130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Wish:
    """The signal that came, if one did."""

    number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None


@contextlib.contextmanager
def interrupts() -> Iterator[Wish]:
    """Within, the first signal is a wish; a second one does what it does elsewhere."""
    wish, before = Wish(), dict[int, Any]()

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
