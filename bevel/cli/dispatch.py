"""Runs the command that a command line names, and turns its errors into messages and exit codes.

    0    success
    1    failure, with a message that says why
    2    wrong usage
    129  the terminal was closed (SIGHUP), 130 interrupted (Ctrl-C), 143 terminated; a run has saved
         its state
    141  the reader of the output has gone, as in `bevel --help | head -1`

A user error prints one message to standard error. `BEVEL_DEBUG=1` also shows the traceback. Other
exceptions are bugs of bevel, and end with a traceback.
"""

import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from bevel.checks import nearest
from bevel.cli.printing import print_error
from bevel.cli.user_code import error_in_user_code
from bevel.cli.wording import in_cli_words, os_error_in_words
from bevel.errors import BevelError
from bevel.lazy import missing_extra

COMMANDS = {
    "demo": "train a private model on bundled data, in about a minute",
    "new": "write a small project that trains at once: config, model, README",
    "train": "train from a config file, or resume a run",
    "data": "show what is in a data set, and propose its part of a config",
    "plan": "propose batch size, steps and learning rate for a privacy budget",
    "tune": "search settings, and charge the search for what it reveals",
    "spent": "show the privacy that a ledger says was spent",
    "audit": "attack a run, and compare what it loses with what it promises",
    "explain": "show how each parameter's gradients are clipped, and the cost",
    "scale": "estimate a step on thousands of devices without running it",
    "launch": "run one program as several local processes",
    "report": "write an HTML report of a run",
    "export": "write the model of a run with a privacy statement",
    "verify": "check a privacy statement against a ledger",
    "bench": "measure the cost of clipping relative to jax.grad",
}
USAGE = """usage: bevel COMMAND ...

Train JAX models with differential privacy.

{commands}

examples:
  bevel demo
  bevel plan --epsilon 3 --examples 60000
  bevel train examples/digits.toml --plan.epsilon=2 --run.folder=runs/two
  bevel report runs/two

`bevel COMMAND --help` describes a command. BEVEL_DEBUG=1 shows tracebacks."""
INTERRUPTED, PIPE_CLOSED = 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
        _drop_output()
    except OSError as error:  # such as a full disk, which a file as the output is on
        code = _failed(error, os_error_in_words(error), 1)
        _drop_output()
    if code == INTERRUPTED and arguments is None:
        # Another Ctrl-C, while Python waits for threads at its exit, would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _run(words: list[str]) -> int:
    """Runs the command that is named first. Its errors become messages."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else 2
    if words[0] == "--version":
        import bevel

        print(f"bevel {bevel.__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        print_error(
            f"there is no command {name!r}{nearest(name, COMMANDS)} bevel --help lists them all."
        )
        return 2
    logging.getLogger("absl").setLevel(logging.ERROR)  # hides Orbax's internal notes
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Shows progress in a pipe too, and file names that the encoding does not have.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    with warnings.catch_warnings():
        # One line, without the source line that raised it.
        warnings.showwarning = lambda message, *_, **__: print_error(f"warning: {message}")
        try:
            command: Any = importlib.import_module(f"bevel.cli.{name}")
            return command.main(rest)
        except SystemExit as end:  # raised by an argument parser, or by Rich
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except KeyboardInterrupt as end:
            return _failed(end, str(end) or "interrupted.", getattr(end, "exit_code", INTERRUPTED))
        except BrokenPipeError:
            raise
        except Exception as error:
            message = _message(error, name, rest)
            if message is None:
                raise
            return _failed(error, message, 1)


def _message(error: Exception, command: str, words: Sequence[str]) -> str | None:
    """What to tell about an exception. None if it is not the user's to mend."""
    if isinstance(error, BevelError):
        from bevel.cli.config_place import with_place

        return with_place(in_cli_words(str(error)), words)
    if isinstance(error, ModuleNotFoundError):
        extra = missing_extra(error, f"bevel {command}")
        if extra is not None:
            return str(extra)
    if isinstance(error, OSError):
        return os_error_in_words(error)
    return error_in_user_code(error)


def _open_closed_streams() -> None:
    """Opens standard streams that were closed before the start, as by `>&-`, on nothing.

    A file that is opened later would get the number of a closed stream, and what a library prints
    would be written into it, such as into the ledger.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    """Sends the rest of the output nowhere: Python would write it at exit, and fail again."""
    with contextlib.suppress(OSError, ValueError):  # the output is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(error: BaseException, message: str, code: int) -> int:
    if os.environ.get("BEVEL_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    print_error(message)
    return code


def _usage() -> str:
    lines = [f"  {name:<8} {summary}" for name, summary in COMMANDS.items()]
    return USAGE.format(commands="\n".join(lines))
