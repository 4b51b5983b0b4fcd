import time

import pytest

from bevel.training.stopwatch import Stopwatch, seconds_by_part


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that only advances when it is told to."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


def test_a_part_inside_another_counts_for_itself_only(clock):
    stopwatch = Stopwatch()
    for _ in range(2):
        with stopwatch.part("checkpoints"):
            clock(1)
            with stopwatch.part("epsilon"):
                clock(5)
                with stopwatch.part("ledger"):
                    clock(0.5)
            with stopwatch.part("epsilon"):
                clock(0.25)
            clock(2)
        clock(100)
    assert stopwatch.seconds == {"checkpoints": 6, "epsilon": 10.5, "ledger": 1}


def test_a_part_that_fails_is_counted(clock):
    stopwatch = Stopwatch()
    with pytest.raises(ValueError, match="full"), stopwatch.part("checkpoints"):
        clock(3)
        raise ValueError("full")
    assert stopwatch.seconds == {"checkpoints": 3}


def test_parts_add_up_to_the_attempt_and_the_compilation_before_it(clock):
    stopwatch = Stopwatch()
    with stopwatch.part("checkpoints"):
        clock(2)
    parts = seconds_by_part(10.0, 4.0, 5.0, 1.5, stopwatch)
    assert parts == {"compiling": 5, "waiting_for_data": 1.5, "checkpoints": 2, "steps": 5.5}
    assert sum(parts.values()) == 10 + 4
