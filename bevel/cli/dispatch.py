"""From the command line to a command, and from what it raises to a message and an exit code.

    0    fine
    1    a failure that says why
    2    wrong usage
    130  interrupted (Ctrl-C), 143 terminated; a run has saved its state then

A user's mistake is one message on the standard error. `BEVEL_DEBUG=1` shows the traceback too.
"""

import difflib
import importlib
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from bevel.errors import BevelError

COMMANDS = {
    "demo": "train a private model on embedded data, in about a minute",
    "train": "train by a config file, or go on where a run ended",
    "plan": "what a budget buys: noise, batches and cost, as a table",
    "spent": "what a ledger says was spent",
    "explain": "how gradients are clipped, parameter by parameter, and what that costs",
    "scale": "a step on thousands of devices, on paper",
    "launch": "run one program as several local processes",
    "report": "a run as one HTML page",
    "bench": "what clipping costs beside jax.grad, on this machine",
}
USAGE = """usage: bevel COMMAND ...

Train JAX models with differential privacy.

{commands}

examples:
  bevel demo
  bevel plan --epsilon 3 --delta 1e-5 --examples 60000 --batch-size 1024 --steps 2000
  bevel train examples/digits.toml --plan.epsilon=2 --run.folder=runs/two
  bevel report runs/two

`bevel COMMAND --help` says more. BEVEL_DEBUG=1 shows tracebacks."""
OPTIONAL = {"tyro", "orbax", "sklearn", "matplotlib", "jinja2", "grain"}
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, and returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if given else 2
    if given[0] == "--version":
        import bevel

        print(f"bevel {bevel.__version__}")
        return 0
    name, *rest = given
    if name not in COMMANDS:
        _say(f"there is no command {name!r}{nearest(name, COMMANDS)}\n\n{_usage()}")
        return 2
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    """Runs a command by name. What it raises becomes a message."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax's notes are for its own developers
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # progress is seen in a pipe, too
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            command: Any = importlib.import_module(f"bevel.cli.{name}")
            return command.main(arguments)
        except SystemExit as end:  # of a parser
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except KeyboardInterrupt as end:
            return _failed(end, str(end) or "interrupted.", getattr(end, "exit_code", INTERRUPTED))
        except (BevelError, OSError) as error:
            return _failed(error, str(error), 1)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in OPTIONAL:
                raise
            missing = f"{error.name} is not installed: pip install 'bevel[train]'."
            return _failed(error, missing, 1)


def _failed(error: BaseException, message: str, code: int) -> int:
    if os.environ.get("BEVEL_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    _say(message)
    return code


def _say(message: str) -> None:
    print(f"bevel: {message}", file=sys.stderr)


def _show_warning(message: Any, *details: Any, **more: Any) -> None:
    """A warning as one line: where in bevel it was raised helps nobody on a command line."""
    _say(f"warning: {message}")


def _usage() -> str:
    lines = [f"  {name:<8} {summary}" for name, summary in COMMANDS.items()]
    return USAGE.format(commands="\n".join(lines))


def nearest(name: str, known: Any) -> str:
    """'. Did you mean ...?', if something is near, or a full stop."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f". Did you mean {found[0]!r}?" if found else "."
