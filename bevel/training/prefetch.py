"""Prefetches batches in a background thread."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Prefetched(Generic[T]):
    """An iterator that computes up to `ahead` items in advance, in order, in one thread.

    If computing an item raises, `next` raises the error after returning all earlier items. `close`
    ends the thread, so use this as a context manager.

    Attributes:
      waited: the time spent waiting for items in `next`, in seconds.
    """

    def __init__(self, make: Callable[[], Iterator[T]], ahead: int = 2) -> None:
        self.waited = 0.0
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(max(1, ahead))
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(make,), name="bevel-prefetch", daemon=True
        )
        self._thread.start()

    def _run(self, make: Callable[[], Iterator[T]]) -> None:
        try:
            for item in make():
                if not self._put(("item", item)):
                    return
            self._put(("end", None))
        except BaseException as error:
            self._put(("error", error))

    def _put(self, entry: tuple[str, Any]) -> bool:
        """Waits for room in the queue. Returns False if the iterator was closed."""
        while not self._closed.is_set():
            try:
                self._queue.put(entry, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> "Prefetched[T]":
        return self

    def __next__(self) -> T:
        start = time.perf_counter()
        kind, value = self._queue.get()
        self.waited += time.perf_counter() - start
        if kind == "item":
            return value
        self._queue.put((kind, value))  # the next call ends or raises in the same way
        if kind == "error":
            raise value
        raise StopIteration

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> "Prefetched[T]":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
