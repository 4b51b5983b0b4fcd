"""Runs the command that a command line names, and turns its errors into messages and exit codes.

    0    success
    1    failure, with a message that says why
    2    wrong usage
    130  interrupted (Ctrl-C), 143 terminated; a run has saved its state

A user error prints one message to standard error. `BEVEL_DEBUG=1` also shows the traceback.
"""

import importlib
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from bevel.checks import nearest
from bevel.cli.wording import in_cli_words
from bevel.errors import BevelError

COMMANDS = {
    "demo": "train a private model on bundled data, in about a minute",
    "train": "train from a config file, or resume a run",
    "plan": "propose batch size, steps and learning rate for a privacy budget",
    "spent": "show the privacy that a ledger says was spent",
    "audit": "attack a run, and compare what it loses with what it promises",
    "explain": "show how each parameter's gradients are clipped, and the cost",
    "scale": "estimate a step on thousands of devices without running it",
    "launch": "run one program as several local processes",
    "report": "write an HTML report of a run",
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
OPTIONAL = {"tyro", "orbax", "sklearn", "matplotlib", "jinja2", "grain"}
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else 2
    if words[0] == "--version":
        import bevel

        print(f"bevel {bevel.__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        _print_error(f"there is no command {name!r}{nearest(name, COMMANDS)}\n\n{_usage()}")
        return 2
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    """Runs a command by name. Its errors become messages."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # hides Orbax's internal notes
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # shows progress in a pipe too
    with warnings.catch_warnings():
        # One line, without the source line that raised it.
        warnings.showwarning = lambda message, *_, **__: _print_error(f"warning: {message}")
        try:
            command: Any = importlib.import_module(f"bevel.cli.{name}")
            return command.main(arguments)
        except SystemExit as end:  # raised by an argument parser
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except KeyboardInterrupt as end:
            return _failed(end, str(end) or "interrupted.", getattr(end, "exit_code", INTERRUPTED))
        except (BevelError, OSError) as error:
            return _failed(error, in_cli_words(str(error)), 1)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in OPTIONAL:
                raise
            missing = f"{error.name} is not installed: pip install 'bevel[train]'."
            return _failed(error, missing, 1)


def _failed(error: BaseException, message: str, code: int) -> int:
    if os.environ.get("BEVEL_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    _print_error(message)
    return code


def _print_error(message: str) -> None:
    print(f"bevel: {message}", file=sys.stderr)


def _usage() -> str:
    lines = [f"  {name:<8} {summary}" for name, summary in COMMANDS.items()]
    return USAGE.format(commands="\n".join(lines))
