"""Adds to an error about a value the line of the config that sets it."""

import re
import typing
from collections.abc import Sequence
from pathlib import Path

from bevel.cli.config import Config
from bevel.cli.toml_lines import line_of

_VALUE = re.compile(r"(?:\[(\w+)\] )?(\w+) is ")


def with_place(message: str, words: Sequence[str]) -> str:
    """'steps is 0: ...' becomes 'run.toml, line 3: [plan] steps is 0: ...'.

    Args:
      message: an error in the words of the command line.
      words: the command line after the name of the command, whose first word may be a config.

    The message stays as it is if it does not begin with a key, or if an option sets the key.
    """
    match = _VALUE.match(message)
    if match is None or not words or Path(words[0]).suffix != ".toml":
        return message
    tables = {
        table
        for table, kind in typing.get_type_hints(Config).items()
        if match[2] in typing.get_type_hints(kind) and match[1] in (None, table)
    }
    key = match[2].replace("_", "-")
    if len(tables) != 1 or any(f".{key}" in word.replace("_", "-") for word in words[1:]):
        return message
    table = tables.pop()
    try:
        text = Path(words[0]).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return message
    line = line_of(text, (table, match[2]))
    if line is None or match[2] not in text.splitlines()[line - 1]:
        return message
    return f"{words[0]}, line {line}: [{table}] {message[match.start(2) :]}"
