"""Runs a program as the child of a process that ends it, and its children, when `launch` dies.

    python supervised.py PIPE CMD ...

`launch` starts this file as a script, in a session of its own. It starts the program, waits for it
and ends in the same way. PIPE is the number of a descriptor, the reading end of a pipe whose
writing end only `launch` has. It closes when `launch` ends, even by SIGKILL. All processes of the
group are then killed. The operating system does the closing, so nothing depends on the program.

It imports little and nothing of bevel, because every process of a run waits for it.
"""

import os
import signal
import sys
import threading

CANNOT_START = 127
# What Python ignores, and programs expect to have their default effect.
IGNORED_BY_PYTHON = [
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)
]


def main(pipe: int, command: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    child = os.fork()
    if not child:
        _become(pipe, command)
    # `launch` sends signals to the whole group. They are for the program.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_kill_group_at_end_of, args=(pipe,), daemon=True).start()
    _, status = os.waitpid(child, 0)
    _end_like(status)


def _become(pipe: int, command: list[str]) -> None:
    """Replaces this process by the program."""
    try:
        os.close(pipe)
        for number in IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(CANNOT_START)


def _kill_group_at_end_of(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _end_like(status: int) -> None:
    """Ends with the exit status of the program, or by the signal that ended it."""
    if os.WIFSIGNALED(status):
        import resource

        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has dumped its core
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
