"""Prints errors, and says how wide the terminal is."""

import contextlib
import shutil
import sys
import textwrap

# Longer lines are hard to read.
_WIDEST_MESSAGE = 100


def width() -> int:
    """The columns of the terminal, or of COLUMNS; 80 where the output is not a terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def print_error(message: str) -> None:
    """Prints a message to standard error. On a terminal its lines are broken between words."""
    lines = f"bevel: {message}".splitlines()
    if sys.stderr.isatty():
        columns = min(width(), _WIDEST_MESSAGE)
        fold = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
        lines = [part for line in lines for part in (fold.wrap(line) if line.strip() else [line])]
    with contextlib.suppress(OSError):  # the terminal was closed
        print("\n".join(lines), file=sys.stderr, flush=True)
