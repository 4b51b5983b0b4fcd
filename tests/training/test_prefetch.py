"""Items are prefetched in order, errors are raised in their place, and the thread ends."""

import threading
import time

import pytest

from bevel.training.prefetch import Prefetched


def test_items_come_in_order_and_are_made_ahead():
    made = []

    def make():
        for k in range(5):
            made.append(k)
            yield k

    with Prefetched(make, ahead=2) as items:
        deadline = time.monotonic() + 5
        while len(made) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert made == [0, 1, 2]  # two are in the queue, one waits for room
        assert list(items) == list(range(5))
        assert list(items) == []


def test_an_error_comes_after_the_items_before_it():
    def make():
        yield 1
        raise OSError("bad sector")

    with Prefetched(make) as items:
        assert next(items) == 1
        for _ in range(2):
            with pytest.raises(OSError, match="bad sector"):
                next(items)


def test_the_thread_ends_when_nobody_wants_more():
    before = threading.active_count()
    with Prefetched(lambda: iter(range(10**9))) as items:
        assert next(items) == 0
    assert threading.active_count() == before


def test_waiting_is_measured():
    def make():
        time.sleep(0.2)
        yield 1

    with Prefetched(make) as items:
        next(items)
        assert 0.1 < items.waited < 5
