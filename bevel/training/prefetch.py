"""What comes next is made while the present is used."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Prefetched(Generic[T]):
    """An iterator whose items are made ahead, in order, by one thread.

    An error of the thread is raised in the place of the item that it hit: items before it still
    come. `close` ends the thread; use it as a context manager.

    Attributes:
      waited: seconds for which the user of the items waited for them.
    """

    def __init__(self, make: Callable[[], Iterator[T]], ahead: int = 2) -> None:
        self.waited = 0.0
        self._made: queue.Queue[tuple[str, Any]] = queue.Queue(max(1, ahead))
        self._ended = threading.Event()
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

    def _put(self, made: tuple[str, Any]) -> bool:
        """Waits for room; False if nobody wants more."""
        while not self._ended.is_set():
            try:
                self._made.put(made, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> "Prefetched[T]":
        return self

    def __next__(self) -> T:
        begun = time.perf_counter()
        kind, value = self._made.get()
        self.waited += time.perf_counter() - begun
        if kind == "item":
            return value
        self._made.put((kind, value))  # the same answer to whoever asks again
        if kind == "error":
            raise value
        raise StopIteration

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> "Prefetched[T]":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
