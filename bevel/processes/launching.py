"""`launch`: several processes on this machine that form one run, for tests and for trying out."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TextIO, cast

from bevel.errors import FixArgumentsError
from bevel.processes.joining import COORDINATOR, COUNT, INDEX

Process = subprocess.Popen[str]
Say = Callable[[str], None]
POLL_SECONDS = 0.05
INTERRUPTED = 128 + signal.SIGINT


def launch(
    command: Sequence[str],
    processes: int = 2,
    devices_per_process: int = 4,
    *,
    output: TextIO | None = None,
    grace_seconds: float = 5.0,
) -> int:
    """Runs a command as several processes on the loopback, until all have ended.

    The program calls `bevel.processes.join()` first, and has
    `processes * devices_per_process` CPU devices then.

    Args:
      command: the program and its arguments.
      processes: how many to start.
      devices_per_process: virtual CPU devices for each.
      output: where lines of all processes go, errors included, each with the number of its process
        in front. The standard output, unless told.
      grace_seconds: time for a process to end after it was asked to, before it is killed.

    Returns:
      0 if all processes returned 0; else what the first that failed returned, with 128 plus the
      number of the signal for one that was killed. When a process fails, the others are ended and
      a line says so. An interrupt (ctrl-C), SIGTERM or SIGHUP is passed on to all.
    """
    if processes < 1 or devices_per_process < 1:
        raise FixArgumentsError(
            f"processes={processes}, devices_per_process={devices_per_process}: give at least 1."
        )
    if not command:
        raise FixArgumentsError("there is no command to launch: give a program and its arguments.")
    stream = output if output is not None else sys.stdout
    lock = threading.Lock()

    def say(line: str) -> None:
        with lock:
            stream.write(line.rstrip("\n") + "\n")
            stream.flush()

    address = f"127.0.0.1:{free_port()}"
    started: list[Process] = []
    readers: list[threading.Thread] = []
    request = signal.SIGTERM
    with _signals_as_interrupts():
        try:
            for index in range(processes):
                environment = environment_of(index, processes, devices_per_process, address)
                process = _start(command, environment)
                started.append(process)
                readers.append(_reader(process, f"[{index}] ", say))
            code = _wait(started, say)
        except KeyboardInterrupt:
            say("interrupted: ending all processes")
            code, request = INTERRUPTED, signal.SIGINT
        finally:
            _end(started, request, grace_seconds)
            for process, thread in zip(started, readers, strict=False):
                thread.join()
                _output_of(process).close()
    return code


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def environment_of(index: int, count: int, devices: int, address: str) -> Mapping[str, str]:
    """The environment of one process: CPU devices, and what `join` looks for."""
    environment = dict(os.environ)
    forced = re.sub(
        r"--xla_force_host_platform_device_count=\S*", "", environment.get("XLA_FLAGS", "")
    )
    return environment | {
        "XLA_FLAGS": forced.strip(),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONUNBUFFERED": "1",
        COORDINATOR: address,
        COUNT: str(count),
        INDEX: str(index),
    }


def _start(command: Sequence[str], environment: Mapping[str, str]) -> Process:
    """A process in a group of its own, so that an interrupt reaches it once, through here."""
    try:
        return subprocess.Popen(
            list(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise FixArgumentsError(f"cannot start {command[0]!r}: {error}.") from error


def _output_of(process: Process) -> IO[str]:
    return cast(IO[str], process.stdout)


def _reader(process: Process, prefix: str, say: Say) -> threading.Thread:
    """A thread that passes on what a process prints."""

    def read() -> None:
        for line in _output_of(process):
            say(prefix + line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _wait(started: Sequence[Process], say: Say) -> int:
    """Until all have returned 0, or one has not."""
    while True:
        codes = [process.poll() for process in started]
        for index, code in enumerate(codes):
            if code:
                others = sum(c is None for c in codes)
                ending = f"; ending the other {others}" if others else ""
                say(f"process {index} {how(code)}{ending}")
                return code if code > 0 else 128 - code
        if all(code == 0 for code in codes):
            return 0
        time.sleep(POLL_SECONDS)


def how(code: int) -> str:
    """How a process ended, in words."""
    if code > 0:
        return f"returned {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _end(started: Sequence[Process], request: signal.Signals, grace_seconds: float) -> None:
    """Asks what still runs to end, and kills what does not, with all it started.

    A second interrupt does not wait.
    """
    with contextlib.suppress(KeyboardInterrupt):
        for process in started:
            _signal_group(process, request)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and any(p.poll() is None for p in started):
            time.sleep(POLL_SECONDS)
    for process in started:
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: Process, number: signal.Signals) -> None:
    """Sends a signal to a process and what it started, as far as they still are there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP end a launch as ctrl-C does; Python allows it in the main thread."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
