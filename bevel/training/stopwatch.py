"""Adds up how long the parts of a run take, for the private record."""

import collections
import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """The seconds that each part took. A part inside another one counts for itself only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self._inner = 0.0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time of a `with` block to a part."""
        before, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            self.seconds[name] += taken - self._inner
            self._inner = before + taken


def seconds_by_part(
    total: float, before: float, programs: float, waited: float, stopwatch: Stopwatch
) -> dict[str, float]:
    """Splits the time of an attempt into parts that add up to it and to what came before it.

    Args:
      total: the seconds of the attempt.
      before: the seconds of compilation before it.
      programs: all seconds of compilation that the run waited for, those before it included.
      waited: the seconds of waiting for data.
      stopwatch: the other parts of the attempt.
    """
    parts = {"compiling": programs, "waiting_for_data": waited, **stopwatch.seconds}
    parts["steps"] = max(0.0, total + before - sum(parts.values()))
    return {name: round(seconds, 3) for name, seconds in parts.items()}
