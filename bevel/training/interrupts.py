"""Turns Ctrl-C, SIGTERM and SIGHUP into a request to stop once the current step is saved."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

# Windows has no SIGHUP, which a closed terminal sends.
SIGNALS = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))


class RunInterrupted(KeyboardInterrupt):
    """A signal ended a run early, after its current step was finished.

    Attributes:
      state: the last `TrainingState`. A run in a folder has saved it: start the run again to
        resume. Without a folder nothing is saved: pass the state to `fit` to resume. The steps
        since the last checkpoint are not charged yet, so do not release anything of this state.
      exit_code: the conventional exit code: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    """

    def __init__(self, number: int, state: Any, steps: int, *, saved: bool) -> None:
        how = (
            "the state is saved: start again to resume"
            if saved
            else "nothing is saved, because the run has no folder: to resume, catch this exception "
            "as `error` and call fit(data, error.state)"
        )
        super().__init__(
            f"stopped by signal {number} after {int(state.step)} of {steps} steps; {how}"
        )
        self.state, self.exit_code = state, 128 + number


class StopRequest:
    """True once a signal was received; `number` is the signal."""

    number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None


@contextlib.contextmanager
def interrupts() -> Iterator[StopRequest]:
    """Yields a request that the first signal sets. A second signal has its usual effect.

    Under `nohup`, which ignores SIGHUP, it stays ignored.
    """
    request, previous_handlers = StopRequest(), dict[int, Any]()

    def restore() -> None:
        for number, handler in previous_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        previous_handlers.clear()

    def request_stop(number: int, frame: Any) -> None:
        request.number = number
        restore()

    if threading.current_thread() is threading.main_thread():  # others cannot set handlers
        for number in SIGNALS:
            ignored = signal.getsignal(number) is signal.SIG_IGN
            if ignored and number not in (signal.SIGINT, signal.SIGTERM):
                continue
            previous_handlers[number] = signal.signal(number, request_stop)
    try:
        yield request
    finally:
        restore()
