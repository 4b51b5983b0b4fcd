"""The first signal is a request to stop, and the second has its usual effect."""

import os
import signal
import threading
import types

import pytest

from bevel.training.interrupts import RunInterrupted, interrupts


def test_the_first_signal_is_a_request_and_the_second_is_not():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts() as request:
        assert not request
        os.kill(os.getpid(), signal.SIGINT)
        assert request and request.number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_handlers_are_put_back():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_signals_stay_as_they_are():
    seen = []

    def work():
        with interrupts() as request:
            seen.append((bool(request), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, signal.getsignal(signal.SIGINT))]


def test_the_exit_code_is_that_of_the_signal():
    state = types.SimpleNamespace(step=3)
    kept = RunInterrupted(signal.SIGINT, state, 8, saved=True)
    assert kept.exit_code == 130 and kept.state is state
    assert "after 3 of 8 steps; the state is saved" in str(kept)
    lost = RunInterrupted(signal.SIGTERM, state, 8, saved=False)
    assert lost.exit_code == 143 and "the state is saved" not in str(lost)
