"""`launch` starts several processes on this machine that form one run."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TextIO, cast

from bevel.checks import whole_number
from bevel.errors import FixArgumentsError
from bevel.processes.joining import COORDINATOR, COUNT, INDEX

Process = subprocess.Popen[str]
WriteLine = Callable[[str], None]
POLL_SECONDS = 0.05
SUPERVISED = Path(__file__).with_name("supervised.py")
INTERRUPTED = 128 + signal.SIGINT


def launch(
    command: Sequence[str],
    processes: int = 2,
    devices_per_process: int = 4,
    *,
    output: TextIO | None = None,
    grace_seconds: float = 5.0,
) -> int:
    """Runs a command as several local processes, and waits until all have exited.

    The program must call `bevel.processes.join()` first. It then has
    `processes * devices_per_process` CPU devices.

    Args:
      command: the program and its arguments.
      processes: the number of processes.
      devices_per_process: the number of virtual CPU devices of each process.
      output: where to write the lines that the processes print, standard error included, each
        prefixed with the index of its process. By default standard output.
      grace_seconds: how long a process may take to exit when asked, before it is killed.

    Returns:
      0 if all processes returned 0. Otherwise the status of the first that failed, or 128 plus the
      number of the signal that killed it. When a process fails, the others are ended and a line
      reports it. Ctrl-C, SIGTERM and SIGHUP end all processes with SIGINT. If this process is
      killed, all processes and what they started in their group are killed with it.
    """
    counts = {"processes": processes, "devices_per_process": devices_per_process}
    for name, count in counts.items():
        whole_number(name, count, 1, 1024, "All of them run on this machine.")
    if not command:
        raise FixArgumentsError("the command is empty: pass a program and its arguments.")
    stream = output if output is not None else sys.stdout
    lock = threading.Lock()

    def write_line(line: str) -> None:
        # If the lines were not read, the programs would wait once their pipes are full.
        with lock, contextlib.suppress(OSError):
            stream.write(line.rstrip("\n") + "\n")
            stream.flush()

    address = f"127.0.0.1:{free_port()}"
    started: list[Process] = []
    readers: list[threading.Thread] = []
    request = signal.SIGTERM
    with _signals_as_interrupts(), _pipe_of_this_process() as pipe:
        try:
            for index in range(processes):
                environment = environment_of(index, processes, devices_per_process, address)
                process = _start(command, environment, pipe)
                started.append(process)
                readers.append(_reader(process, f"[{index}] ", write_line))
            code = _wait(started, write_line)
        except KeyboardInterrupt:
            write_line("interrupted: ending all processes")
            code, request = INTERRUPTED, signal.SIGINT
        finally:
            _end(started, request, grace_seconds)
            for process, thread in zip(started, readers, strict=False):
                thread.join()
                cast(IO[str], process.stdout).close()
    return code


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def environment_of(index: int, count: int, devices: int, address: str) -> Mapping[str, str]:
    """The environment of one process: its CPU devices, and the variables that `join` reads."""
    environment = dict(os.environ)
    flags = re.sub(
        r"--xla_force_host_platform_device_count=\S*", "", environment.get("XLA_FLAGS", "")
    )
    return environment | {
        "XLA_FLAGS": flags.strip(),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONUNBUFFERED": "1",
        COORDINATOR: address,
        COUNT: str(count),
        INDEX: str(index),
    }


@contextlib.contextmanager
def _pipe_of_this_process() -> Iterator[int]:
    """Yields the reading end of a pipe that closes when this process ends, however it ends."""
    reading, writing = os.pipe()  # no other program gets the writing end
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def _start(command: Sequence[str], environment: Mapping[str, str], pipe: int) -> Process:
    """Starts a process in its own group, so that it gets an interrupt only from `launch`.

    `supervised.py` is between `launch` and the program: it ends the program if `launch` is killed.
    """
    found = shutil.which(command[0], path=environment.get("PATH"))
    if found is None:
        raise FixArgumentsError(
            f"cannot start {command[0]!r}: there is no such program, or you may not execute it."
        )
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISED), str(pipe), *command],
            env=environment,
            pass_fds=[pipe],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise FixArgumentsError(f"cannot start {command[0]!r}: {error}.") from error


def _reader(process: Process, prefix: str, write_line: WriteLine) -> threading.Thread:
    """Starts a thread that forwards what a process prints."""

    def read() -> None:
        for line in cast(IO[str], process.stdout):
            write_line(prefix + line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _wait(started: Sequence[Process], write_line: WriteLine) -> int:
    """Waits until all processes have returned 0, or one has failed."""
    while True:
        codes = [process.poll() for process in started]
        for index, code in enumerate(codes):
            if code:
                others = sum(c is None for c in codes)
                ending = f"; ending the other {others}" if others else ""
                write_line(f"process {index} {exit_text(code)}{ending}")
                return code if code > 0 else 128 - code
        if all(code == 0 for code in codes):
            return 0
        time.sleep(POLL_SECONDS)


def exit_text(code: int) -> str:
    """Describes how a process ended."""
    if code > 0:
        return f"returned {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _end(started: Sequence[Process], request: signal.Signals, grace_seconds: float) -> None:
    """Asks running processes to exit, then kills them and their children after `grace_seconds`.

    A second interrupt kills them at once.
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
    """Sends a signal to a process and its children, if they are still running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP act like Ctrl-C. Python allows this only in the main thread."""

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
