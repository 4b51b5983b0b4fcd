"""The first signal is a request to stop, and the second has its usual effect."""

import os
import signal
import threading
import types

import pytest

from bevel.training.interrupts import SIGNALS, RunInterrupted, interrupts


def test_the_first_signal_is_a_request_and_the_second_is_not():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts() as request:
        assert not request
        os.kill(os.getpid(), signal.SIGINT)
        assert request and request.number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(name="hangup", params=[signal.SIG_DFL, signal.SIG_IGN])
def fixture_hangup(request):
    """What a closed terminal does: ends the process, or nothing under nohup."""
    before = signal.signal(signal.SIGHUP, request.param)
    yield request.param
    signal.signal(signal.SIGHUP, before)


def test_handlers_are_put_back(hangup):
    before = [signal.getsignal(n) for n in SIGNALS]
    with interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(n) for n in SIGNALS] == before


def test_a_closed_terminal_stops_the_run_unless_that_is_ignored(hangup):
    with interrupts() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        assert bool(request) == (hangup is signal.SIG_DFL)
    assert request.number == (signal.SIGHUP if request else None)


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
